// All runs: search, sort, state, success with interval; two of them can be compared.
import { useState } from "preact/hooks";
import { address, comparison, encode, go, parse, setQuery } from "./address.js";
import { moveFocus, useKeys } from "./keyboard.js";
import { Spark, State, Success } from "./marks.js";
import { ago, dollars, fixed, integer, percent } from "./numbers.js";
import { Shown } from "./shown.js";
import { paths } from "./source.js";
import { announce, useDoc } from "./state.js";
import { Short, Text, visible } from "./text.js";

const COLUMNS = [
  { key: "run", name: "Run", of: (run) => run.run.toLowerCase() },
  { key: "state", name: "State", of: (run) => run.state },
  { key: "step", name: "Step", of: (run) => run.step, right: true },
  { key: "spark", name: "Reward", of: (run) => run.spark.at(-1) ?? -Infinity },
  { key: "success", name: "Success", of: (run) => run.success ?? -Infinity },
  { key: "before", name: "Change", of: (run) => (run.success == null || run.before == null ? -Infinity : run.success - run.before), right: true },
  { key: "cost", name: "Cost", of: (run) => run.cost_usd, right: true },
  { key: "errors", name: "Errors", of: (run) => run.errors, right: true },
  { key: "updated", name: "Updated", of: (run) => run.updated, right: true },
];
const STATES = ["running", "finished", "interrupted", "failed"];
const SHOWN = 200;

function selectRuns(runs, query) {
  const words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const kept = runs.filter((run) => {
    const text = `${run.run} ${run.path} ${run.recipe} ${run.kind} ${run.set} ${run.message} seed ${run.seed}`.toLowerCase();
    return words.every((word) => text.includes(word)) && (!query.state || run.state === query.state) && (!query.kind || run.kind === query.kind);
  });
  const column = COLUMNS.find((candidate) => candidate.key === query.sort) ?? COLUMNS.at(-1);
  const sign = (query.dir ?? (query.sort ? "up" : "down")) === "down" ? -1 : 1;
  return kept.sort((a, b) => {
    const [left, right] = [column.of(a), column.of(b)];
    return sign * (left < right ? -1 : left > right ? 1 : 0) || (a.run < b.run ? -1 : 1);
  });
}

function Change({ run }) {
  if (run.success == null || run.before == null) return <span class="soft">–</span>;
  const points = (run.success - run.before) * 100;
  const text = `${points > 0 ? "+" : points < 0 ? "−" : ""}${fixed(Math.abs(points), 1)}`;
  return <span class={points > 0.05 ? "up" : points < -0.05 ? "down" : "soft"} title={`${percent(run.before)} before`}>{text}</span>;
}

function Head({ column, query }) {
  const active = (query.sort ?? "updated") === column.key;
  const down = active && (query.dir ?? (query.sort ? "up" : "down")) === "down";
  const next = active ? (down ? "up" : "down") : ["run", "state"].includes(column.key) ? "up" : "down";
  return (
    <th scope="col" role="columnheader" class={column.right ? "n" : ""} aria-sort={active ? (down ? "descending" : "ascending") : undefined}>
      <button type="button" class="sort" onClick={() => setQuery({ sort: column.key, dir: next })}>
        {column.name}
        <span class="arrow" aria-hidden="true">{active ? (down ? "↓" : "↑") : ""}</span>
      </button>
    </th>
  );
}

function Row({ run, picked, pick }) {
  const open = address([run.run]);
  return (
    <tr role="row" class={picked ? "picked" : ""}>
      <td role="cell" class="pick">
        <input type="checkbox" checked={picked} aria-label={`Choose ${visible(run.run)} to compare`} onChange={() => pick(run.run)} />
      </td>
      <th scope="row" role="rowheader" class="name">
        <a href={open} data-item data-run={run.run}><Short text={run.run} limit={80} /></a>
        <span class="soft"><Short text={`${run.recipe} · ${run.kind} · seed ${run.seed}`} limit={120} /></span>
        {run.damage.length > 0 && <span class="warn" title={visible(run.damage.join("\n"))}>damaged: {run.damage.length}</span>}
      </th>
      <td role="cell" class="of-state"><State state={run.state} message={run.message} /></td>
      <td role="cell" class="n of-step">{integer(run.step)}{run.steps != null && <span class="soft"> / {integer(run.steps)}</span>}</td>
      <td role="cell" class="of-spark"><Spark values={run.spark} label="Reward" /></td>
      <td role="cell" class="of-success">
        <Success value={run.success} interval={run.interval} before={run.before} />
      </td>
      <td role="cell" class="n of-change"><Change run={run} /></td>
      <td role="cell" class="n of-cost">{dollars(run.cost_usd)}</td>
      <td role="cell" class={`n of-errors ${run.errors ? "bad" : "soft"}`}>{integer(run.errors)}<span class="phone"> errors</span></td>
      <td role="cell" class="n soft of-updated"><time datetime={run.updated} title={run.updated}>{ago(run.updated)}</time></td>
    </tr>
  );
}

function Select({ name, value, options }) {
  return (
    <select aria-label={name} value={value ?? ""} onChange={(event) => setQuery({ [name]: event.target.value })}>
      <option value="">Any {name}</option>
      {options.map((option) => <option key={option} value={option}>{option}</option>)}
    </select>
  );
}

export function Runs({ query }) {
  const state = useDoc(paths.runs());
  const [all, setAll] = useState(false);
  const pair = (query.pick ?? "").split(",").filter(Boolean).map((run) => parse(`#/${run}`).run);
  const pick = (name) => {
    const next = pair.includes(name) ? pair.filter((run) => run !== name) : [...pair, name].slice(-2);
    setQuery({ pick: next.map(encode).join(",") });
    announce(next.length === 2 ? "Two runs chosen: c compares them." : `${next.length} run chosen.`);
  };
  const compare = () => (pair.length === 2 ? go(comparison(pair)) : false);
  useKeys([
    { keys: ["j", "ArrowDown"], label: "next run", run: () => moveFocus("[data-item]", 1) },
    { keys: ["k", "ArrowUp"], label: "previous run", run: () => moveFocus("[data-item]", -1) },
    { keys: ["Enter"], label: "open the run", run: () => false },
    { keys: ["x"], label: "choose the run to compare", run: () => document.activeElement?.dataset.run && pick(document.activeElement.dataset.run) },
    { keys: ["c"], label: "compare the two chosen runs", run: compare },
  ]);
  return (
    <Shown state={state}>
      {(doc) => {
        const runs = selectRuns(doc.runs, query);
        const kinds = [...new Set(doc.runs.map((run) => run.kind))].sort();
        return (
          <>
            <div class="page-head">
              <h1 tabindex="-1"><Text text={doc.title || "Runs"} /></h1>
              <p class="soft count" aria-live="polite">
                {runs.length === doc.runs.length ? `${integer(runs.length)} in all` : `${integer(runs.length)} of ${integer(doc.runs.length)}`}
              </p>
            </div>
            <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
              <input type="search" data-search placeholder="Search name, recipe, path" aria-label="Search runs" value={query.q ?? ""} onInput={(event) => setQuery({ q: event.target.value })} />
              <Select name="state" value={query.state} options={STATES} />
              {kinds.length > 1 && <Select name="kind" value={query.kind} options={kinds} />}
              <select class="phone" aria-label="sort" value={query.sort ?? "updated"} onChange={(event) => setQuery({ sort: event.target.value, dir: event.target.value === "run" ? "up" : "down" })}>
                {COLUMNS.map((column) => <option key={column.key} value={column.key}>By {column.name.toLowerCase()}</option>)}
              </select>
              <button type="button" disabled={pair.length !== 2} onClick={compare} title="Choose two runs in the list">
                Compare {pair.length === 2 ? "2 runs" : `(${pair.length} of 2)`}
              </button>
              {pair.length > 0 && <button type="button" class="link" onClick={() => setQuery({ pick: "" })}>Clear</button>}
            </form>
            <div class="scroll runs" role="group" tabindex="0" aria-label="Runs">
              <table role="table">
                <thead role="rowgroup">
                  <tr role="row">
                    <td role="cell" class="pick"><span class="hidden">Compare</span></td>
                    {COLUMNS.map((column) => <Head key={column.key} column={column} query={query} />)}
                  </tr>
                </thead>
                <tbody role="rowgroup">
                  {runs.slice(0, all ? runs.length : SHOWN).map((run) => (
                    <Row key={run.run} run={run} picked={pair.includes(run.run)} pick={pick} />
                  ))}
                </tbody>
              </table>
            </div>
            {!runs.length && <p class="empty">{doc.runs.length ? "No run fits." : "No runs here yet. `midstream train flow-grpo-tiny` makes one in minutes."}</p>}
            {runs.length > SHOWN && !all && <p><button type="button" onClick={() => setAll(true)}>Show all {integer(runs.length)}</button></p>}
          </>
        );
      }}
    </Shown>
  );
}
