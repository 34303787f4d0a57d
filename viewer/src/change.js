// A change that waits for a person: its text against the present one, the evidence, and a yes or no. In files nothing is
// offered.
import { useState } from "preact/hooks";
import { Blocks } from "./blocks.js";
import { Words } from "./shown.js";
import { isLive, vote as send } from "./source.js";
import { announce } from "./state.js";
import { Text, textNodes } from "./text.js";

const TONES = { "+": "added", "-": "removed", "@": "gap" };

/** The lines of a unified diff; what a sign says is said in words, too. */
export const Difference = ({ lines }) => (
  <div class="difference" role="group" aria-label="Difference to the present text">
    {lines.map((line, index) => {
      const tone = TONES[line[0]] ?? "";
      const Line = { added: "ins", removed: "del" }[tone] ?? "span";
      return <Line key={index} class={`line ${tone}`}><span class="sign">{line[0]}</span><bdi>{textNodes(tone === "gap" ? "" : line.slice(1))}</bdi></Line>;
    })}
  </div>
);

export function Change({ block, run }) {
  const { lesson, update, title, blocks } = block;
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const decide = async (verdict, section) => {
    setBusy(true);
    setProblem(null);
    try {
      const { applied } = await send(run, { lesson, update, verdict });
      announce(verdict === "no" ? `${lesson} rejected.` : `${lesson} approved, ${applied ? "in use now" : "in use from the next update"}.`);
      // The card is about to be gone.
      section?.querySelector("h2")?.focus();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return (
    <section class="change" aria-label={title}>
      <h3><Text text={title} /></h3>
      <Blocks blocks={blocks} run={run} />
      {isLive() && run && (
        <div class="buttons" role="group" aria-label={`Decide on ${lesson}`}>
          {[["yes", "Approve"], ["no", "Reject"]].map(([verdict, label]) => (
            <button key={verdict} type="button" disabled={busy} onClick={(event) => decide(verdict, event.currentTarget.closest("[data-section]"))}>{label}</button>
          ))}
        </div>
      )}
      {problem && <div class="problem" role="alert"><Words error={problem} before="Not kept: " /></div>}
    </section>
  );
}
