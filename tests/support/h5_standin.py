# TEMP
from midstream.practice.gate import Decision
from midstream.practice.records import ChangeRecord, Test
from midstream.practice.operations import applied
from midstream.practice.playing import Match
import midstream.practice.update as U
async def decide(library, changes, *, tasks, play, config, updates, seed):
    new = applied(library, changes); n=0; d=[]
    if not changes: return Decision(library=library, changes=(), tests=())
    for b in range(2):
        ms=[Match(task=t.model_copy(update={"id":f"{t.id}@w-{b}-{i}"}), first=library, other=new) for i,t in enumerate(tasks[:2])]
        d += [y-x for x,y in filter(None, await play(f"whole-{b}", ms))]
    ok = sum(d)>=0
    return Decision(library=new if ok else library, changes=tuple(ChangeRecord(operation=c, fate="accepted" if ok else "pending") for c in changes),
       tests=(Test(name="whole", changes=tuple(range(len(changes))), pairs=len(d), verdict="better" if ok else "undecided"),))
U.decide = decide
