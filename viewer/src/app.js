// The frame of every page: where one is, live or not, the theme, the keys; and which page is shown.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { address, go, namesOf, parse } from "./address.js";
import { Failures } from "./failures.js";
import { Group } from "./group.js";
import { currentKeys, useKeys } from "./keyboard.js";
import { List } from "./list.js";
import { Compare, Run } from "./run.js";
import { Runs } from "./runs.js";
import { Problem } from "./shown.js";
import { isLive, listenTo } from "./source.js";
import { announce, switchTheme, useAddress } from "./state.js";
import { Short, cut, visible } from "./text.js";
import { Tokens } from "./tokens.js";
import { Trajectory } from "./trajectory.js";
import { Which } from "./which.js";

/** [name, hash] from the runs down to what is shown. */
function crumbs(at) {
  if (at.page === "compare") return [["Runs", "#/"], [`${at.a} and ${at.b}`, location.hash]];
  const { run, part, task, rollout, turn, token } = at;
  const trail = [["Runs", "#/"]];
  const names = [];
  const add = (name, label) => {
    if (name === undefined) return;
    names.push(name);
    trail.push([label, address(names)]);
  };
  add(run, run);
  add(part, part);
  add(task, task);
  add(rollout, `rollout ${(rollout ?? "").replace("@", "at ")}`);
  add(turn, turn === "end" ? "end" : `turn ${turn}`);
  add(token, `token ${Number(token) + 1 || token}`);
  return trail;
}

function Page({ at }) {
  switch (at.page) {
    case "runs": return <Runs query={at.query} />;
    case "run": return <Run key={at.run} run={at.run} query={at.query} />;
    case "compare": return at.query.which && isLive() ? <Which a={at.a} b={at.b} query={at.query} /> : <Compare a={at.a} b={at.b} query={at.query} />;
    case "list":
      if (at.query.view === "failures") return <Failures key={`${at.run}/${at.part}`} run={at.run} part={at.part} />;
      return <List key={`${at.run}/${at.part}`} run={at.run} part={at.part} query={at.query} />;
    case "group": return <Group run={at.run} part={at.part} task={at.task} query={at.query} />;
    case "trajectory": return <Trajectory at={at} />;
    default: return <Tokens at={at} />;
  }
}

const GLOBAL = [
  ["u", "up one level"],
  ["/", "search"],
  ["d", "dark or light"],
  ["g r", "all runs"],
  ["Escape", "leave a field or this list"],
  ["?", "these keys"],
];

const names = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→" };

function Keys({ close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const lists = currentKeys();
  const own = lists.slice(0, -1).flat();
  const line = (keys, label) => (
    <div key={label}>
      <dt>{keys.map((key) => <kbd key={key}>{names[key] ?? key}</kbd>)}</dt>
      <dd>{label}</dd>
    </div>
  );
  return (
    <dialog ref={dialog} aria-labelledby="keys-title" onClose={close} onClick={(event) => event.target === dialog.current && dialog.current.close()}>
      <div class="dialog">
        <h2 id="keys-title">Keys</h2>
        {own.length > 0 && <dl class="keys">{own.map((entry) => line(entry.keys, entry.label))}</dl>}
        <h3>Everywhere</h3>
        <dl class="keys">{GLOBAL.map(([keys, label]) => line(keys.split(" "), label))}</dl>
        <button type="button" onClick={() => dialog.current.close()}>Close</button>
      </div>
    </dialog>
  );
}

function Source({ connected }) {
  if (!isLive()) return <span class="source soft" title="What this file holds; nothing is loaded from elsewhere">one file</span>;
  return (
    <span class={`source ${connected ? "up" : "warn"}`} role="status">
      <span class="dot" aria-hidden="true" />
      {connected ? "live" : "no connection"}
    </span>
  );
}

/** Positions of former pages in the history, so that the back button returns to the same place. */
const scrolls = new Map();
const placeOf = (at) => [at.a, at.b, ...namesOf(at)].join("/");

function useScroll(at) {
  const path = placeOf(at);
  const back = useRef(false);
  useEffect(() => {
    history.scrollRestoration = "manual";
    const note = () => scrolls.set(placeOf(parse(location.hash)), scrollY);
    const popped = (event) => (back.current = event.state !== null);
    addEventListener("scroll", note, { passive: true });
    addEventListener("popstate", popped);
    return () => {
      removeEventListener("scroll", note);
      removeEventListener("popstate", popped);
    };
  }, []);
  const first = useRef(true);
  useLayoutEffect(() => {
    const returned = back.current;
    back.current = false;
    if (history.state === null) history.replaceState({ seen: true }, "");
    if (first.current) {
      first.current = false;
      return undefined;
    }
    const trajectory = at.turn !== undefined; // goes to its turn by itself
    const wish = returned ? (scrolls.get(path) ?? 0) : 0;
    if (!trajectory) scrollTo(0, wish);
    let tries = 0;
    // The page may be short until its document is there.
    const later = setInterval(() => {
      if (returned && !trajectory && Math.abs(scrollY - wish) > 2) scrollTo(0, wish);
      if (++tries > 10 || scrollY >= wish) clearInterval(later);
    }, 50);
    return () => clearInterval(later);
  }, [path]);
}

/** The heading of a page that was gone to takes the focus, once it is there. */
function useHeading(at) {
  const level = `${at.page}/${at.run}/${at.part}/${at.task}/${at.a}/${at.b}`;
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return undefined;
    }
    if (at.turn !== undefined) return undefined;
    let tries = 0;
    const later = setInterval(() => {
      const heading = document.querySelector("main h1");
      const idle = document.activeElement === document.body || !document.activeElement;
      if (heading && idle) heading.focus({ preventScroll: true });
      if (heading || ++tries > 40) clearInterval(later);
    }, 50);
    return () => clearInterval(later);
  }, [level]);
}

export function App({ problem }) {
  const at = useAddress();
  const [keys, setKeys] = useState(false);
  const [connected, setConnected] = useState(true);
  const [prefix, setPrefix] = useState(0);
  const trail = crumbs(at);
  useScroll(at);
  useHeading(at);
  useEffect(
    () =>
      listenTo((news) => {
        if (news.connected === undefined) return;
        setConnected((former) => {
          if (former !== news.connected) announce(news.connected ? "Connected again." : "The server does not answer; trying again.");
          return news.connected;
        });
      }),
    [],
  );
  useEffect(() => {
    document.title = `${cut(visible(trail.at(-1)[0]), 80)}${trail.length > 2 ? ` · ${cut(visible(trail[1][0]), 60)}` : ""} · midstream`;
  }, [location.hash]);
  const up = () => (trail.length > 1 ? go(trail.at(-2)[1]) : false);
  const theme = () => announce(`${switchTheme()} theme`);
  useKeys([
    { keys: ["?"], run: () => setKeys((open) => !open) },
    { keys: ["u"], run: up },
    { keys: ["d"], run: theme },
    { keys: ["/"], run: () => document.querySelector("[data-search]")?.focus() ?? undefined },
    { keys: ["g"], run: () => setPrefix(Date.now()) },
    { keys: ["r"], run: () => (Date.now() - prefix < 1500 ? go("#/") : false) },
    { keys: ["Escape"], run: () => document.activeElement?.blur() },
  ], { base: true });
  return (
    <>
      <header class="bar">
        <a class="skip" href={location.hash} onClick={(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to content</a>
        <a class="brand" href="#/">midstream</a>
        {trail.length > 1 && <a class="icon phone" href={trail.at(-2)[1]} aria-label="Up one level">←</a>}
        <nav aria-label="Where you are">
          <ol class="crumbs">
            {trail.slice(trail.length > 1 ? 1 : 0).map(([name, hash], index, all) => (
              <li key={index}>
                <a href={hash} aria-current={index === all.length - 1 ? "page" : undefined}><Short text={name} limit={60} /></a>
              </li>
            ))}
          </ol>
        </nav>
        <Source connected={connected} />
        <button type="button" class="icon" onClick={theme} aria-label="Switch between dark and light" title="Dark or light (d)">
          <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><circle cx="8" cy="8" r="5.5" /><path class="half" d="M8 2.5a5.5 5.5 0 0 1 0 11z" /></svg>
        </button>
        <button type="button" class="icon" onClick={() => setKeys(true)} aria-label="Keys" title="Keys (?)"><span aria-hidden="true">?</span></button>
      </header>
      <main tabindex="-1">{problem ? <Problem error={problem} /> : <Page at={at} />}</main>
      <div id="news" class="hidden" role="status" aria-live="polite" />
      {keys && <Keys close={() => setKeys(false)} />}
    </>
  );
}
