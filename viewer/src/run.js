// One run: the blocks of its page, a table of contents, and its steps and evaluations.
import { useEffect, useState } from "preact/hooks";
import { address, setQuery } from "./address.js";
import { Sections } from "./blocks.js";
import { Fold } from "./fold.js";
import { moveFocus, useKeys } from "./keyboard.js";
import { Bar, State } from "./marks.js";
import { ago, counted, integer } from "./numbers.js";
import { Shown } from "./shown.js";
import { isLive, paths } from "./source.js";
import { useDoc } from "./state.js";
import { Long, Short, Text } from "./text.js";

const FIRST = 40;

function PartRow({ run, part, span, percent }) {
  return (
    <li>
      <a href={address([run, part.name])} data-item>
        <Short text={part.title || part.name} limit={60} />
        <span class="numbers">
          {part.errors > 0 && <span class="bad" title={counted(part.errors, "error")}>{integer(part.errors)} err</span>}
          <Bar value={part.mean} span={span} digits={3} percent={percent} />
        </span>
      </a>
    </li>
  );
}

/** Steps, newest first, and evaluations: each is a list of rollouts. */
function Parts({ run, parts }) {
  const [all, setAll] = useState(false);
  const steps = parts.filter((part) => part.kind === "step").toReversed();
  const others = parts.filter((part) => part.kind !== "step").toReversed();
  const span = Math.max(1, ...parts.map((part) => Math.abs(part.mean ?? 0)));
  const shares = others.every(({ mean }) => mean === null || (mean >= 0 && mean <= 1));
  if (!parts.length) return <p class="empty">No rollouts yet.</p>;
  return (
    <>
      {others.length > 0 && <h3>Evaluations</h3>}
      <ul class="parts">{others.map((part) => <PartRow key={part.name} run={run} part={part} span={span} percent={shares} />)}</ul>
      {steps.length > 0 && <h3>Steps <span class="soft">mean reward</span></h3>}
      <ul class="parts">{steps.slice(0, all ? steps.length : FIRST).map((part) => <PartRow key={part.name} run={run} part={part} span={span} />)}</ul>
      {steps.length > FIRST && !all && <button type="button" class="link" onClick={() => setAll(true)}>All {integer(steps.length)} steps</button>}
    </>
  );
}

/** Press a button of the lesson that has the focus. */
function thumb(vote) {
  const button = document.activeElement?.closest(".card")?.querySelector(`.thumbs.${vote}`);
  button?.click();
  return Boolean(button);
}

const scrollToSection = (key) => {
  const section = [...document.querySelectorAll("[data-section]")].find((candidate) => candidate.dataset.section === key);
  section?.scrollIntoView({ block: "start" });
  section?.querySelector("h2")?.focus({ preventScroll: true });
};

function Contents({ sections }) {
  return (
    <ul class="contents">
      {sections.map(([key, title]) => (
        <li key={key}>
          <button
            type="button"
            class="link"
            onClick={() => {
              setQuery({ section: key });
              scrollToSection(key);
            }}
          >
            <Text text={title} />
          </button>
        </li>
      ))}
    </ul>
  );
}

const Warnings = ({ warnings }) =>
  warnings.length > 0 && (
    <div class="notice warn">
      <p><b>{warnings.length === 1 ? "A part of this run is missing or damaged." : `${warnings.length} parts of this run are missing or damaged.`}</b></p>
      {warnings.length > 3 ? (
        <Fold title="Which">{warnings.map((text, index) => <Long key={index} text={text} />)}</Fold>
      ) : (
        warnings.map((text, index) => <Long key={index} text={text} />)
      )}
    </div>
  );

function Facts({ summary }) {
  const { state, message, recipe, seed, updated, path } = summary;
  return (
    <>
      <p class="facts-line">
        <State state={state} message={message} />
        <span><Short text={recipe} /></span>
        <span>seed {seed}</span>
        {updated && <span>updated <time datetime={updated}>{ago(updated)}</time></span>}
        <span class="mono"><Short text={path} /></span>
      </p>
      {message && state !== "finished" && <Long text={message} tone={state === "failed" ? "bad" : "soft"} />}
    </>
  );
}

export function Run({ run, query }) {
  const state = useDoc(paths.run(run));
  const there = state.doc !== undefined;
  useEffect(() => {
    if (there && query.section) requestAnimationFrame(() => scrollToSection(query.section));
  }, [there, run]);
  useKeys([
    { keys: ["j", "ArrowDown"], label: "next step or evaluation", run: () => moveFocus("[data-item]", 1) },
    { keys: ["k", "ArrowUp"], label: "previous step or evaluation", run: () => moveFocus("[data-item]", -1) },
    { keys: ["Enter"], label: "open it", run: () => false },
    ...(isLive()
      ? [
          { keys: ["v"], label: "thumb up on the lesson that has the focus", run: () => thumb("up") },
          { keys: ["V"], label: "thumb down on it", run: () => thumb("down") },
        ]
      : []),
  ]);
  return (
    <Shown state={state}>
      {({ summary, page, parts = [], warnings = [] }) => (
        <div class="with-side">
          <div class="page-head">
            <h1 tabindex="-1"><Short text={page.title || run} limit={120} /></h1>
            {summary && <Facts summary={summary} />}
            {page.lead && <Long text={page.lead} tone="lead" />}
            <Warnings warnings={warnings} />
          </div>
          <aside class="side" aria-label="Contents, steps and evaluations">
            <h2>On this page</h2>
            <Contents sections={page.sections.map((section) => [section.key, section.title])} />
            {summary && (
              <Fold class="rollouts" title={<h2>Rollouts</h2>} open={matchMedia("(min-width: 961px)").matches}>
                <Parts run={run} parts={parts} />
              </Fold>
            )}
          </aside>
          <div class="body">
            <Sections page={page} run={run} />
          </div>
        </div>
      )}
    </Shown>
  );
}

/** Two runs next to each other: a page of blocks too. */
export function Compare({ a, b, query }) {
  const state = useDoc(paths.compare(a, b));
  return (
    <Shown state={state}>
      {(page) => (
        <>
          <div class="page-head">
            <h1 tabindex="-1"><Short text={page.title} limit={160} /></h1>
            <p class="facts-line">
              <a href={address([a])}><Short text={a} /></a>
              <a href={address([b])}><Short text={b} /></a>
            </p>
            {page.lead && <Long text={page.lead} tone="lead" />}
            {isLive() && <p class="action"><a href={address([], { compare: query.compare, which: "next" })}>Which is better? Judge the answers yourself</a></p>}
          </div>
          <Sections page={page} run={null} />
        </>
      )}
    </Shown>
  );
}
