// "Which is better?": a question and two answers in random order, without names; a person chooses.
import { useEffect, useState } from "preact/hooks";
import { address, comparison, go } from "./address.js";
import { useKeys } from "./keyboard.js";
import { counted, integer } from "./numbers.js";
import { Shown, Words } from "./shown.js";
import { choose as send, paths } from "./source.js";
import { announce, useDoc } from "./state.js";
import { Long } from "./text.js";

const CHOICES = [["first", "Answer 1 is better", "1"], ["equal", "Equal", "0"], ["second", "Answer 2 is better", "2"]];

export function Which({ a, b, query }) {
  const place = /^\d+$/.test(query.which) ? Number(query.which) : null;
  const state = useDoc(paths.choices(a, b), place === null ? {} : { place });
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const doc = state.doc;
  useEffect(() => {
    setProblem(null);
    scrollTo(0, 0);
  }, [query.which]);
  const to = (next) => go(address([], { compare: query.compare, which: next }));
  // An address of its own, to which the back button returns: "next" is another question after each choice.
  useEffect(() => {
    if (place === null && doc) go(address([], { compare: query.compare, which: doc.place }), { replace: true });
  }, [place, doc]);
  const choose = async (choice) => {
    if (!doc?.id || doc.place !== place || busy) return false;
    setBusy(true);
    try {
      const next = await send(a, b, { id: doc.id, choice });
      announce(choice ? `Kept. ${next.decided} of ${next.count} judged.` : "Taken back.");
      setProblem(null);
      if (choice) to(next.place);
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
    return true;
  };
  const step = (by) => (doc && place + by >= 0 && place + by < doc.count ? to(place + by) : false);
  useKeys([
    { keys: ["1", "ArrowLeft"], label: "the first answer is better", run: () => choose("first") },
    { keys: ["2", "ArrowRight"], label: "the second answer is better", run: () => choose("second") },
    { keys: ["0", "="], label: "they are equally good", run: () => choose("equal") },
    { keys: ["x", "Backspace"], label: "take the choice back", run: () => (doc?.choice ? choose("") : false) },
    { keys: ["j", "ArrowDown"], label: "next question", run: () => step(1) },
    { keys: ["k", "ArrowUp"], label: "previous question", run: () => step(-1) },
  ]);
  return (
    <Shown state={state}>
      {({ count, decided, question, answers, choice }) => (
        <div class="which">
          <div class="page-head">
            <h1 tabindex="-1">Which is better?</h1>
            <p class="facts-line">
              <span>{integer(decided)} of {counted(count, "question")} judged</span>
              <span>the order is random, names are hidden</span>
              <a href={comparison([a, b])}>To the comparison</a>
            </p>
          </div>
          {!answers ? (
            <p class="empty">{count ? "Every question is judged; the comparison counts the choices." : "Both give the same answer to every question that they share."}</p>
          ) : (
            <>
              <section aria-label="Question" class="asked"><Long text={question} /></section>
              <div class="pair">
                {answers.map((answer, index) => (
                  <section key={index} class={`run-card ${choice === ["first", "second"][index] ? "better" : ""}`}>
                    <h2>Answer {index + 1}</h2>
                    {answer ? <Long block text={answer} lines={40} /> : <p class="soft">No answer.</p>}
                  </section>
                ))}
              </div>
              <div class="buttons decide" role="group" aria-label="Which is better?">
                {CHOICES.map(([name, label, key]) => (
                  <button key={name} type="button" aria-pressed={choice === name} disabled={busy} onClick={() => choose(name)}>{label} <kbd aria-hidden="true">{key}</kbd></button>
                ))}
              </div>
              {problem && <div class="problem" role="alert"><Words error={problem} before="Not kept: " /></div>}
              <nav class="pager" aria-label="Questions">
                <button type="button" disabled={!place} onClick={() => step(-1)}>Previous</button>
                <span class="soft">Question {integer((place ?? 0) + 1)} of {integer(count)}</span>
                <button type="button" disabled={place + 1 >= count} onClick={() => step(1)}>Next</button>
                {choice && <button type="button" class="link" onClick={() => choose("")}>Take back</button>}
              </nav>
            </>
          )}
        </div>
      )}
    </Shown>
  );
}
