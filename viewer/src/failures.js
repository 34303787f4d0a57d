// The rollouts of a part that are not right, grouped by cause; those that are chosen become a file of tasks.
import { useState } from "preact/hooks";
import { address } from "./address.js";
import { moveFocus, useKeys } from "./keyboard.js";
import { Head } from "./list.js";
import { Bar } from "./marks.js";
import { counted, integer, percent } from "./numbers.js";
import { Shown } from "./shown.js";
import { paths } from "./source.js";
import { announce, useDoc } from "./state.js";
import { Short, Text, visible } from "./text.js";

const SHOWN = 8; // rollouts of a cause at first

/** A checkbox of several rollouts, half checked where some are chosen. */
function Choose({ places, chosen, choose, label }) {
  const there = places.filter((place) => chosen.has(place)).length;
  const set = (box) => {
    if (box) box.indeterminate = there > 0 && there < places.length;
  };
  const all = places.length > 0 && there === places.length;
  return <input type="checkbox" ref={set} checked={all} aria-label={visible(label)} onChange={() => choose(places, !all)} />;
}

function Rollout({ run, part, rollout, chosen, choose }) {
  const { place, task, question, answer, gold } = rollout;
  return (
    <li>
      <Choose places={[place]} chosen={chosen} choose={choose} label={`Choose rollout ${place}`} />
      <a href={address([run, part, task, `@${place}`])} data-item><Short text={question || task} limit={200} /></a>
      <span class="answers">
        {answer ? <Short text={answer} limit={60} /> : <span class="soft">no answer</span>}
        {gold && <span class="soft"> correct: <Short text={gold} limit={60} /></span>}
      </span>
    </li>
  );
}

function Cause({ run, part, group, total, chosen, choose }) {
  const { cause, words, rollouts } = group;
  const [limit, setLimit] = useState(SHOWN);
  const places = rollouts.map((rollout) => rollout.place);
  const more = rollouts.length - limit;
  return (
    <li class="cause">
      <div class="cause-head">
        <Choose places={places} chosen={chosen} choose={choose} label={`Choose all: ${cause}`} />
        <h2><a href={address([run, part], { cause })} data-item><Short text={cause} limit={160} /></a></h2>
        <span class="share"><b>{integer(rollouts.length)}</b> <Bar value={rollouts.length / total} percent /></span>
      </div>
      {words && <p class="words"><Short text={words} limit={300} /></p>}
      <ul>
        {rollouts.slice(0, limit).map((rollout) => <Rollout key={rollout.place} run={run} part={part} rollout={rollout} chosen={chosen} choose={choose} />)}
      </ul>
      {more > 0 && <button type="button" class="link" onClick={() => setLimit(limit + 200)}>Show {integer(Math.min(more, 200))} more</button>}
    </li>
  );
}

const rolloutsOf = (doc) => doc.causes.flatMap((group) => group.rollouts);

/** The lines of the tasks of chosen rollouts, in the order of the page: what `midstream failures --tasks` writes. */
const linesOf = (doc, rollouts) => [...new Set(rollouts.map((rollout) => rollout.line))].map((line) => `${doc.tasks[line]}\n`);

const NOT_KEPT =
  "A run keeps no reward of a task's own and none of its other fields: add them to the file, or a right answer may count as wrong.";

/** What the file of chosen rollouts lacks. */
function notesOf(doc, rollouts, lines) {
  // The document holds the beginning of a long answer.
  const unlike = rollouts.filter(({ line, gold }) => {
    const kept = visible([JSON.parse(doc.tasks[line]).answer].flat()[0]);
    return gold.length < 400 ? kept !== gold : !kept.startsWith(gold);
  }).length;
  const empty = lines.filter((line) => !JSON.parse(line).answer).length;
  return [
    NOT_KEPT,
    unlike > 0 && `${counted(unlike, "rollout has", "rollouts have")} another correct answer to a question that is in the file: the first one is kept.`,
    empty > 0 && `${counted(empty, "task has", "tasks have")} no correct answer in the run: fill it in.`,
  ].filter(Boolean);
}

/** What could not be read: `lost` rollouts, if their number is known. */
const Unread = ({ lost, warnings }) => (
  <div class="notice warn">
    <p><b>{lost ? counted(lost, "rollout") : "Some rollouts"} cannot be read.</b></p>
    {warnings.map((text) => <p key={text}><Short text={text} limit={600} /></p>)}
  </div>
);

function download(name, lines) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function Failures({ run, part }) {
  const state = useDoc(paths.failures(run, part));
  const about = useDoc(paths.part(run, part), { limit: 1 });
  const [chosen, setChosen] = useState(() => new Set());
  const [saved, setSaved] = useState("");
  const choose = (places, add) => {
    const next = new Set(chosen);
    places.forEach((place) => (add ? next.add(place) : next.delete(place)));
    setChosen(next);
    setSaved("");
  };
  const save = () => {
    const lines = state.doc ? linesOf(state.doc, rolloutsOf(state.doc).filter((rollout) => chosen.has(rollout.place))) : [];
    if (!lines.length) return false;
    const name = `${run}-${part}-failures.jsonl`.replace(/[^\w.=+-]+/g, "-");
    download(name, lines);
    setSaved(name);
    announce(`Saved ${counted(lines.length, "task")}.`);
    return true;
  };
  const box = () => document.activeElement?.closest("li")?.querySelector("input[type=checkbox]");
  useKeys([
    { keys: ["j", "ArrowDown"], label: "next cause or rollout", run: () => moveFocus("[data-item]", 1) },
    { keys: ["k", "ArrowUp"], label: "previous cause or rollout", run: () => moveFocus("[data-item]", -1) },
    { keys: ["Enter"], label: "open it", run: () => false },
    { keys: ["x"], label: "choose it", run: () => (box() ? box().click() : false) },
    { keys: ["s"], label: "save what is chosen as tasks", run: save },
  ]);
  return (
    <>
      <Head run={run} part={part} info={about.doc?.part} view="failures" />
      <Shown state={state}>
        {(doc) => {
          const rollouts = rolloutsOf(doc);
          const places = rollouts.map((rollout) => rollout.place);
          const damaged = doc.unread > 0 || doc.warnings.length > 0;
          // Of a damaged file not even the list is whole; a run at work merely has more than its part had.
          const lost = doc.unread + (doc.warnings.length ? Math.max(0, (about.doc?.part?.count ?? 0) - doc.count) : 0);
          const unread = damaged && <Unread lost={lost} warnings={doc.warnings} />;
          if (!places.length) {
            const words = !damaged ? "Every rollout here is right." : doc.unread || !doc.count ? "No rollout that failed can be read." : "Every rollout that can be read is right.";
            return <>{unread}<p class="empty">{words}</p></>;
          }
          const taken = rollouts.filter((rollout) => chosen.has(rollout.place));
          const lines = linesOf(doc, taken);
          return (
            <>
              {unread}
              <p class="soft count">
                {integer(places.length)} of {counted(doc.count, "rollout")} ({percent(places.length / doc.count)}) {places.length === 1 ? "is" : "are"} not right, by {counted(doc.causes.length, "cause")}.
              </p>
              <div class="choose">
                <label><Choose places={places} chosen={chosen} choose={choose} label="Choose all rollouts" /> All</label>
                <button type="button" disabled={!lines.length} onClick={save}>Save as tasks</button>
                <span class="soft" aria-live="polite">
                  {chosen.size ? `${counted(chosen.size, "rollout")} of ${counted(lines.length, "task")} chosen` : "Choose causes or rollouts to make a file of their tasks."}
                </span>
              </div>
              {lines.length > 0 && notesOf(doc, taken, lines).map((text) => <p class="soft" key={text}>{text}</p>)}
              {saved && <div class="notice"><p>Saved <Text text={saved} />. This evaluates an agent on these tasks:</p><pre>midstream eval RECIPE --tasks {saved}</pre></div>}
              <ul class="causes">
                {doc.causes.map((group) => <Cause key={group.cause} run={run} part={part} group={group} total={doc.count} chosen={chosen} choose={choose} />)}
              </ul>
            </>
          );
        }}
      </Shown>
    </>
  );
}
