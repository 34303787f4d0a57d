// The rollouts of a step or an evaluation: only the rows in view are in the DOM; filters stand in the address.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { address, go, setQuery } from "./address.js";
import { FILTERS, useEntries } from "./entries.js";
import { useKeys } from "./keyboard.js";
import { Bar, Verdict } from "./marks.js";
import { counted, integer, number } from "./numbers.js";
import { Problem } from "./shown.js";
import { Missing, isLive } from "./source.js";
import { Short, Text, visible } from "./text.js";

const AROUND = 12; // rows above and below what is seen
const rowHeight = () => (matchMedia("(max-width: 640px)").matches ? 60 : 36);

function Filters({ query }) {
  const [draft, setDraft] = useState(query);
  useEffect(() => setDraft(query), [JSON.stringify(query)]);
  const wait = useRef(0);
  // Typing waits for a pause: each filter may read the whole part.
  const type = (name) => (event) => {
    const value = event.target.value;
    setDraft({ ...draft, [name]: value });
    clearTimeout(wait.current);
    wait.current = setTimeout(() => setQuery({ [name]: value, at: "" }), 300);
  };
  const field = (name, hint) => (
    <input type="search" class={name} data-search={name === "text" ? "" : undefined} aria-label={hint} placeholder={hint} value={draft[name] ?? ""} onInput={type(name)} />
  );
  const select = (name, options) => (
    <select aria-label={name} value={query[name] ?? ""} onChange={(event) => setQuery({ [name]: event.target.value, at: "" })}>
      {options.map(([value, word]) => <option key={value} value={value}>{word}</option>)}
    </select>
  );
  const rewards = [["", "Any reward"], ["1", "Solved (1)"], ["wrong", "Not right"], ["<1", "Below 1"], ["0", "Reward 0"], [">0", "Above 0"]];
  if (query.reward && !rewards.some(([value]) => value === query.reward)) rewards.push([query.reward, `Reward ${visible(query.reward)}`]);
  const set = FILTERS.filter((name) => query[name]);
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      {field("text", "Search text")}
      {select("reward", rewards)}
      {select("status", [["", "Any status"], ["ok", "ok"], ["error", "error"]])}
      {field("tool", "Tool")}
      {field("error", "Error")}
      {isLive() && (
        <input type="search" class="where" aria-label="Expression" placeholder='Expression: turns > 3 and "python" in tools' key={query.where} defaultValue={query.where ?? ""} onChange={(event) => setQuery({ where: event.target.value.trim(), at: "" })} />
      )}
      {["family", "cause"].filter((name) => query[name]).map((name) => (
        <span class="chip" key={name}>
          {name} <b><Short text={query[name]} limit={80} /></b>
          <button type="button" class="icon" aria-label={`Any ${name}`} onClick={() => setQuery({ [name]: "", at: "" })}><span aria-hidden="true">×</span></button>
        </span>
      ))}
      {set.length > 0 && (
        <button type="button" class="link" onClick={() => setQuery(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>
          Clear
        </button>
      )}
    </form>
  );
}

/** The head of a part's page: its title and numbers, and the views of it. */
export function Head({ run, part, info, view = "" }) {
  const tab = (name, label) => <a href={address([run, part], { view: name })} aria-current={view === name ? "page" : undefined}>{label}</a>;
  return (
    <div class="page-head">
      <h1 tabindex="-1"><Short text={info?.title || part} limit={120} /></h1>
      {info && (
        <p class="facts-line">
          <span>{counted(info.count, "rollout")}</span>
          {info.mean != null && <span>mean reward {number(info.mean)}</span>}
          {info.errors > 0 && <span class="bad">{counted(info.errors, "error")}</span>}
        </p>
      )}
      <nav class="tabs" aria-label="Views">{tab("", "Rollouts")}{tab("failures", "Failures by cause")}</nav>
    </div>
  );
}

// Ids of tasks differ at their end.
const ending = (task) => (task.length > 20 ? `…${task.slice(-18)}` : task);

function Entry({ run, part, entry, index, top, active, tabbed, first, again, span }) {
  const place = `translateY(${top}px)`;
  const set = (element) => {
    if (element) element.style.transform = place;
  };
  if (!entry) return <div role="row" aria-rowindex={index + 2} class="entry waiting" ref={set}><span role="cell" class="place">{integer(index)}</span></div>;
  return (
    <div role="row" aria-rowindex={index + 2} class={`entry ${active ? "active" : ""} ${first ? "first" : ""} ${again ? "again" : ""}`} ref={set}>
      <span role="cell" class="place">{entry.place}</span>
      <span role="cell" class="what">
        <a href={address([run, part, entry.task, `@${entry.place}`])} data-index={index} tabindex={active || tabbed ? 0 : -1}>
          <Short text={entry.question || entry.task} limit={200} />
        </a>
      </span>
      <span role="cell" class="task"><a href={address([run, part, entry.task])} tabindex="-1" title={visible(entry.task)}><Text text={ending(entry.task)} /></a></span>
      <span role="cell" class="answer">{entry.answer ? <Short text={entry.answer} limit={60} /> : <span class="soft">–</span>}</span>
      <span role="cell" class="turns">{entry.turns == null ? <span class="soft">–</span> : counted(entry.turns, "turn")}</span>
      <span role="cell" class="reward"><Bar value={entry.reward} span={span} /></span>
      <span role="cell" class="verdict"><Verdict reward={entry.reward} status={entry.status} /></span>
    </div>
  );
}

export function List({ run, part, query }) {
  const filter = Object.fromEntries(FILTERS.map((name) => [name, query[name] ?? ""]));
  const entries = useEntries(run, part, filter);
  const box = useRef(null);
  const [seen, setSeen] = useState([0, 40]);
  const [active, setActive] = useState(query.at ? Number(query.at) || 0 : -1);
  const wantsFocus = useRef(false);
  const height = rowHeight();

  const look = () => {
    if (!box.current) return;
    const top = -box.current.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / height) - AROUND);
    const last = Math.ceil((top + innerHeight) / height) + AROUND;
    setSeen((former) => (former[0] === first && former[1] === last ? former : [first, last]));
  };
  useEffect(() => {
    look();
    let frame = 0;
    const later = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(look);
    };
    addEventListener("scroll", later, { passive: true });
    addEventListener("resize", later);
    return () => {
      removeEventListener("scroll", later);
      removeEventListener("resize", later);
      cancelAnimationFrame(frame);
    };
  }, [height]);
  useEffect(() => entries.more(seen[0], seen[1]));
  useLayoutEffect(look, [entries.count]);
  useLayoutEffect(() => {
    if (box.current) box.current.style.height = `${entries.count * height}px`;
  });
  useLayoutEffect(() => {
    if (!wantsFocus.current) return;
    const link = box.current?.querySelector(`[data-index="${active}"]`);
    if (link) {
      link.focus({ preventScroll: true });
      wantsFocus.current = false;
    }
  });

  const move = (to) => {
    if (!entries.count) return;
    const next = Math.max(0, Math.min(entries.count - 1, to));
    setActive(next);
    wantsFocus.current = true;
    const top = box.current.getBoundingClientRect().top + next * height;
    if (top < 110) scrollBy(0, top - 110);
    else if (top + height > innerHeight - 20) scrollBy(0, top + height - innerHeight + 20);
    setQuery({ at: next || "" });
    look();
  };
  // An address with a row opens at that row.
  const opened = useRef(false);
  useLayoutEffect(() => {
    if (opened.current || !entries.count) return;
    opened.current = true;
    const top = box.current.getBoundingClientRect().top + active * height;
    if (active > 0 && top > innerHeight - 80) scrollBy(0, top - innerHeight / 2);
    look();
  }, [entries.count]);
  const here = entries.at(active);
  useKeys([
    { keys: ["j", "ArrowDown"], label: "next rollout", run: () => move(active + 1) },
    { keys: ["k", "ArrowUp"], label: "previous rollout", run: () => move(active - 1) },
    { keys: ["PageDown"], label: "", run: () => document.activeElement?.dataset.index && move(active + 20) },
    { keys: ["G", "End"], label: "last rollout", run: () => move(entries.count - 1) },
    { keys: ["Home"], label: "first rollout", run: () => move(0) },
    { keys: ["Enter"], label: "open the rollout", run: () => here && go(address([run, part, here.task, `@${here.place}`])) },
    { keys: ["o"], label: "open its group", run: () => here && go(address([run, part, here.task])) },
  ]);

  const last = Math.min(entries.count, seen[1] + 1);
  const rows = [];
  let span = 1;
  for (let index = seen[0]; index < last; index++) {
    const entry = entries.at(index);
    span = Math.max(span, Math.abs(entry?.reward ?? 0));
    rows.push([index, entry]);
  }
  const info = entries.part;
  const lost = entries.error instanceof Missing || entries.error?.status === 404;
  if (lost && !entries.count) return <Problem error={entries.error} />;
  return (
    <>
      <Head run={run} part={part} info={info} />
      <Filters query={query} />
      {entries.filtered && !entries.error && (
        <p class="soft count" aria-live="polite">
          {counted(entries.count, "rollout fits", "rollouts fit")}
          {entries.done ? "" : `, ${integer(entries.scanned)} of ${integer(info?.count)} read so far`}
          {!isLive() && (filter.tool || filter.error || filter.text) && ", of those whose turns this file holds"}
        </p>
      )}
      {entries.error && <Problem error={entries.error} />}
      {(!entries.error || entries.count > 0) && <div role="table" aria-label="Rollouts" aria-rowcount={entries.done ? entries.count + 1 : -1} class="entries">
        <div role="rowgroup">
          <div role="row" aria-rowindex="1" class="entry entry-head">
            <span role="columnheader" class="place">Place</span>
            <span role="columnheader" class="what">Question</span>
            <span role="columnheader" class="task">Task</span>
            <span role="columnheader" class="answer">Answer</span>
            <span role="columnheader" class="turns">Turns</span>
            <span role="columnheader" class="reward">Reward</span>
            <span role="columnheader" class="verdict">Outcome</span>
          </div>
        </div>
        <div role="rowgroup" class="entry-rows" ref={box}>
          {rows.map(([index, entry]) => (
            <Entry key={index} run={run} part={part} entry={entry} index={index} top={index * height} active={index === active} tabbed={active < 0 && index === 0} first={index > 0 && entry && entries.at(index - 1)?.task !== entry.task} again={index > 0 && entry && entries.at(index - 1)?.task === entry.task} span={span} />
          ))}
        </div>
      </div>}
      {!entries.count && !entries.error && (entries.busy ? <p class="loading" aria-busy="true">Loading</p> : <p class="empty">No rollout {entries.filtered ? "fits" : "here"}.</p>)}
    </>
  );
}
