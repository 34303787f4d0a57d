// One rollout turn by turn, in windows of turns: of a hundred thousand, fifty are in the DOM.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { address, go } from "./address.js";
import { Feedback } from "./feedback.js";
import { useKeys } from "./keyboard.js";
import { Bar, Verdict } from "./marks.js";
import { counted, dollars, integer, number, seconds, signed } from "./numbers.js";
import { Shown } from "./shown.js";
import { isLive, paths } from "./source.js";
import { useDoc } from "./state.js";
import { Long, Short, Text } from "./text.js";
import { Calls, Ending, Rows, Turn } from "./turns.js";

export const WINDOW = 50;

/**
 * {state, group, place, rollout} of the rollout that an address names: its number in the group, or "@PLACE" in the
 * part, which is replaced by the number.
 */
export function useRollout(at, query = {}) {
  const { run, part, task, rollout, turn, token } = at;
  const group = useDoc(paths.group(run, part, task));
  const rollouts = group.doc?.rollouts ?? [];
  const byPlace = rollout.startsWith("@");
  const index = byPlace ? rollouts.findIndex((one) => String(one.place) === rollout.slice(1)) : Number(rollout);
  const place = byPlace ? Number(rollout.slice(1)) : rollouts[index]?.place;
  useEffect(() => {
    if (byPlace && index >= 0) {
      go(address([run, part, task, index, turn, token].filter((name) => name !== undefined), at.query), { replace: true });
    }
  }, [byPlace, index]);
  const state = useDoc(place === undefined || Number.isNaN(place) ? null : paths.trajectory(run, part, place), query);
  const missing = group.doc && place === undefined ? { error: new Error(`This group has ${rollouts.length} rollouts, numbered from 0.`) } : null;
  // A file may hold a trajectory without its group.
  return { state: missing ?? (place === undefined && group.error ? { error: group.error } : state), group: group.doc, place, index };
}

/** The turns of a window: the live server sends only them, a file has all. */
function windowOf(trajectory, first) {
  const total = trajectory.turns_total ?? null;
  if (isLive()) return { turns: trajectory.turns, total };
  return { turns: trajectory.turns.slice(first - (trajectory.first_turn ?? 0), first - (trajectory.first_turn ?? 0) + WINDOW), total };
}

function Facts({ trajectory }) {
  const facts = [
    ["Reward", trajectory.reward == null ? null : <Bar value={trajectory.reward} span={Math.max(1, Math.abs(trajectory.reward))} />],
    ["Advantage", trajectory.advantage == null ? null : signed(trajectory.advantage)],
    ["Correct answer", trajectory.gold == null ? null : <Short text={trajectory.gold} limit={120} />],
    ["Stopped by", trajectory.stop ? <Text text={trajectory.stop} /> : null],
    ["Tokens", trajectory.prompt_tokens == null ? null : `${integer(trajectory.prompt_tokens)} → ${integer(trajectory.completion_tokens)}`],
    ["Time", trajectory.duration_s ? seconds(trajectory.duration_s) : null],
    ["Cost", trajectory.cost_usd ? dollars(trajectory.cost_usd) : null],
    ["Agent", trajectory.agent ? <Text text={trajectory.agent} /> : null],
  ].filter(([, value]) => value !== null);
  return (
    <dl class="strip">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The rollouts of the group as a row of links, with reward; the present one is marked. */
function Siblings({ base, group, index, turn }) {
  if (!group || group.rollouts.length < 2) return null;
  const tail = turn === undefined ? [] : [turn];
  return (
    <nav class="siblings" aria-label="Rollouts of this group">
      {group.rollouts.map((rollout, place) => (
        <a key={place} href={address([...base, place, ...tail])} aria-current={place === index ? "page" : undefined} class={place === index ? "active" : ""}>
          <span>{place}</span> <span class={rollout.status === "error" ? "bad" : rollout.reward > 0 ? "up" : "soft"}>{rollout.status === "error" ? "error" : number(rollout.reward)}</span>
        </a>
      ))}
      <a class="all" href={address(base)}>Side by side</a>
    </nav>
  );
}

function Pager({ first, total, shown, to }) {
  if (total !== null && total <= WINDOW) return null;
  const last = first + shown;
  return (
    <nav class="pager" aria-label="Turns">
      <button type="button" disabled={first === 0} onClick={() => to(1)}>First</button>
      <button type="button" disabled={first === 0} onClick={() => to(first - WINDOW + 1)}>Previous {WINDOW}</button>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          to(Number(new FormData(event.target).get("turn")) || 1);
        }}
      >
        <label>Turn <input name="turn" inputmode="numeric" size="7" key={first} defaultValue={first + 1} /></label>
        <span class="soft">to {integer(last)} of {total === null ? "…" : integer(total)}</span>
      </form>
      <button type="button" disabled={total === null ? shown < WINDOW : last >= total} onClick={() => to(last + 1)}>Next {WINDOW}</button>
      <button type="button" disabled={total === null || last >= total} onClick={() => to(total)}>Last</button>
    </nav>
  );
}

function Index({ turns, base, active }) {
  return (
    <ol class="index">
      {turns.map((turn) => (
        <li key={turn.index}>
          <a href={address([...base, turn.index])} class={turn.index === active ? "active" : ""} aria-current={turn.index === active ? "step" : undefined}>
            <span class="n">{turn.index}</span>
            <Short text={turn.tool || "reply"} limit={40} />
            {(turn.error || turn.malformed) && <span class="bad">{turn.error ? "error" : "malformed"}</span>}
          </a>
        </li>
      ))}
    </ol>
  );
}

export function Trajectory({ at }) {
  const { run, part, task, turn } = at;
  const number_ = Math.max(1, Number(turn) || 1);
  const first = Math.floor((number_ - 1) / WINDOW) * WINDOW;
  const { state, group, place, index } = useRollout(at, { turn: first, limit: WINDOW });
  const rollout = Number.isInteger(index) && index >= 0 ? index : at.rollout;
  const base = [run, part, task];
  const names = [...base, rollout];
  const feedback = useRef(null);
  const total = state.doc?.turns_total ?? null;
  const to = (wish) => go(address([...names, Math.max(1, Math.min(total ?? Infinity, wish))]));
  const step = (by) => to(turn === undefined ? 1 : number_ + by);
  const sibling = (by) => {
    const next = rollout + by;
    return group && next >= 0 && next < group.rollouts.length ? go(address([...base, next, ...(turn === undefined ? [] : [turn])]), { replace: true }) : false;
  };
  const folds = () => {
    const scope = document.querySelector(".turn.active") ?? document.querySelector(".turn");
    const fold = scope?.querySelector("details.calls");
    if (fold) fold.open = !fold.open;
    return Boolean(fold);
  };
  const tokens = () => {
    const turns = state.doc?.turns ?? [];
    const here = turns.find((one) => one.index === number_) ?? turns[0];
    const call = here?.calls.find((one) => one.tokens && one.trained) ?? here?.calls.find((one) => one.tokens);
    return call ? go(address([...names, here.index, 0], { call: call.n })) : false;
  };
  useKeys([
    { keys: ["j", "ArrowDown"], label: "next turn", run: () => step(1) },
    { keys: ["k", "ArrowUp"], label: "previous turn", run: () => step(-1) },
    { keys: ["l", "ArrowRight"], label: "next rollout of the group", run: () => sibling(1) },
    { keys: ["h", "ArrowLeft"], label: "previous rollout", run: () => sibling(-1) },
    { keys: ["Enter", "o"], label: "open or fold the calls of the turn", run: folds },
    { keys: ["t"], label: "tokens of the turn", run: tokens },
    ...(isLive()
      ? [
          { keys: ["v"], label: "thumb up", run: () => feedback.current?.choose("up") },
          { keys: ["V"], label: "thumb down", run: () => feedback.current?.choose("down") },
          { keys: ["n"], label: "write a note", run: () => feedback.current?.note() },
        ]
      : []),
  ]);
  const there = state.doc?.turns?.[0]?.index;
  useLayoutEffect(() => {
    if (turn === undefined) return;
    const element = document.querySelector(`[data-turn="${number_}"]`);
    if (!element) return;
    element.scrollIntoView({ block: "start" });
    element.querySelector("h3")?.focus({ preventScroll: true });
  }, [turn, there, place]);
  return (
    <Shown state={state}>
      {(trajectory) => {
        const { turns } = windowOf(trajectory, first);
        const where = (index_) => ({ run, part, place, names, turn: index_ });
        const last = total === null || first + turns.length >= total;
        return (
          <div class="with-side narrow">
            <div class="page-head">
              <h1 tabindex="-1" class="question"><Short text={trajectory.question || trajectory.task} limit={1200} /></h1>
              <p class="facts-line">
                <Verdict reward={trajectory.reward} status={trajectory.status} />
                <span>{total === null ? "turns are being counted" : counted(total, "turn")}</span>
                <span class="mono"><Short text={trajectory.task} /></span>
                {trajectory.family && <span><Text text={trajectory.family} /></span>}
              </p>
              <Siblings base={base} group={group} index={rollout} turn={turn} />
              <Facts trajectory={trajectory} />
              <Feedback run={run} target={{ part, id: trajectory.id }} given={trajectory.vote} register={(actions) => (feedback.current = actions)} />
            </div>
            <aside class="side" aria-label="Turns">
              <h2>Turns</h2>
              <Index turns={turns} base={names} active={turn === undefined ? null : number_} />
            </aside>
            <div class="body">
              <h2 class="hidden">What happened</h2>
              <Pager first={first} total={total} shown={turns.length} to={to} />
              {first === 0 && <Rows rows={trajectory.opening} />}
              {first === 0 && <Calls calls={trajectory.opening_calls} where={where(0)} />}
              {turns.length > 0 ? (
                <ol class="turns">
                  {turns.map((one) => <Turn key={one.index} turn={one} where={where(one.index)} active={turn !== undefined && one.index === number_} />)}
                </ol>
              ) : (
                !state.loading && <p class="empty">No turn was taken.</p>
              )}
              <Pager first={first} total={total} shown={turns.length} to={to} />
              {last && (
                <section class="ending" aria-label="How it ended">
                  <h3>How it ended</h3>
                  {trajectory.error && <Long block text={trajectory.error} tone="bad" />}
                  <Ending trajectory={trajectory} />
                  <Rows rows={trajectory.end} />
                  <Calls calls={trajectory.closing} where={where("end")} />
                </section>
              )}
            </div>
          </div>
        );
      }}
    </Shown>
  );
}
