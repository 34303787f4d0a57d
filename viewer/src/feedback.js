// A thumb up or down and a note, on a trajectory or a lesson. In files what was given is shown, nothing is offered.
import { useEffect, useState } from "preact/hooks";
import { Thumb } from "./marks.js";
import { Words } from "./shown.js";
import { isLive, vote as send } from "./source.js";
import { announce } from "./state.js";
import { Long } from "./text.js";

const WORDS = { up: "thumb up", down: "thumb down", "": "no thumb" };

/** `target` is {part, id} or {lesson}; `given` is {vote, note} or null. `register` receives `choose` for keys. */
export function Feedback({ run, target, given, register }) {
  const [state, setState] = useState({ vote: given?.vote ?? "", note: given?.note ?? "" });
  const [open, setOpen] = useState(false);
  const [problem, setProblem] = useState(null);
  const identity = JSON.stringify(target);
  const [former, setFormer] = useState(identity);
  useEffect(() => {
    setState({ vote: given?.vote ?? "", note: given?.note ?? "" });
    if (identity !== former) setOpen(false);
    setFormer(identity);
    setProblem(null);
  }, [identity, given?.vote, given?.note]);

  // The server keeps the other of vote and note.
  const keep = async (change, sentence) => {
    const before = state;
    setState({ ...state, ...change });
    setProblem(null);
    try {
      await send(run, { ...target, ...change });
      announce(sentence);
      if ("note" in change) setOpen(false);
    } catch (error) {
      setState(before);
      setProblem(error);
    }
  };
  const choose = (vote) => {
    const next = state.vote === vote ? "" : vote;
    return keep({ vote: next }, `Kept: ${WORDS[next]}.`);
  };
  useEffect(() => register?.({ choose, note: () => setOpen(true) }));

  if (!isLive()) {
    if (!state.vote && !state.note) return null;
    return (
      <div class="feedback given">
        {state.vote && (
          <span class="thumbed">
            <Thumb down={state.vote === "down"} /> {WORDS[state.vote]}
          </span>
        )}
        {state.note && <Long text={state.note} />}
      </div>
    );
  }
  return (
    <div class="feedback">
      <div class="buttons" role="group" aria-label="Your judgment">
        {["up", "down"].map((vote) => (
          <button key={vote} type="button" class={`thumbs ${vote}`} aria-pressed={state.vote === vote} onClick={() => choose(vote)}>
            <Thumb down={vote === "down"} /> {vote === "up" ? "Good" : "Bad"}
          </button>
        ))}
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>
          {state.note ? "Edit note" : "Note"}
        </button>
      </div>
      {open ? (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            keep({ note: new FormData(event.target).get("note").trim() }, "Note kept.");
          }}
        >
          <label>
            <span class="hidden">Note</span>
            <textarea name="note" rows="3" maxlength="10000" ref={(area) => area && !area.dataset.met && ((area.dataset.met = "1"), area.focus())} defaultValue={state.note} />
          </label>
          <div class="buttons">
            <button type="submit">Keep note</button>
            <button type="button" class="link" onClick={() => setOpen(false)}>Cancel</button>
          </div>
        </form>
      ) : (
        state.note && <Long text={state.note} />
      )}
      {problem && <div class="problem" role="alert"><Words error={problem} before="Not kept: " /></div>}
    </div>
  );
}
