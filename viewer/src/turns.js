// Turns of a trajectory: what was planned, called, observed and judged, and the model's calls folded below.
import { address } from "./address.js";
import { Call } from "./call.js";
import { Verdict } from "./marks.js";
import { number } from "./numbers.js";
import { Long, Short, Text, visible } from "./text.js";
import { Fold } from "./fold.js";

export const Rows = ({ rows }) =>
  rows.length > 0 && (
    <dl class="rows">
      {rows.map((row, index) => (
        <div key={index} class={row.tone}>
          <dt>
            <Text text={row.label.trim()} />
          </dt>
          <dd><Long text={row.text} block={row.block} tone={row.tone} label={visible(row.label)} /></dd>
        </div>
      ))}
    </dl>
  );

export function Calls({ calls, where, open = false }) {
  if (!calls.length) return null;
  const roles = [...new Set(calls.map((call) => call.role))].join(", ");
  const tokens = calls.reduce((sum, call) => sum + (call.completion_tokens ?? 0), 0);
  return (
    <Fold
      class="calls"
      open={open}
      title={<>{calls.length === 1 ? "1 call" : `${calls.length} calls`} <span class="soft">· <Short text={roles} limit={60} /> · {tokens.toLocaleString("en")} tokens</span></>}
    >
      {calls.map((call) => <Call key={call.n} call={call} where={where} />)}
    </Fold>
  );
}

export const Turn = ({ turn, where, active = false }) => (
  <li class={`turn ${active ? "active" : ""}`} data-turn={turn.index}>
    <h3 tabindex={where ? "-1" : undefined}>
      <span class="index">Turn {turn.index}</span>
      {turn.tool && <Text class="tool" text={turn.tool} />}
      {turn.malformed && <span class="mark bad">malformed</span>}
      {turn.error && <span class="mark bad"><Short text={turn.error} limit={80} /></span>}
    </h3>
    <Rows rows={turn.rows} />
    <Calls calls={turn.calls} where={where} />
  </li>
);

/** The answer and the reward with its parts: how a trajectory ended. */
export const Ending = ({ trajectory }) => (
  <dl class="rows end">
    <div>
      <dt>Answer</dt>
      <dd>{trajectory.answer == null ? <span class="soft">none</span> : <Long text={trajectory.answer} />}</dd>
    </div>
    {Object.keys(trajectory.reward_parts ?? {}).length > 0 && (
      <div>
        <dt>Reward</dt>
        <dd>
          <Text text={Object.entries(trajectory.reward_parts).map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value)}`).join(", ")} />
        </dd>
      </div>
    )}
    {trajectory.feedback && (
      <div>
        <dt>Judge</dt>
        <dd><Long text={trajectory.feedback} /></dd>
      </div>
    )}
  </dl>
);

/** A whole trajectory as a card, next to another one of its task. */
export function TrajectoryCard({ label, trajectory, run }) {
  const known = run && trajectory.part && trajectory.task != null;
  return (
    <article class="run-card">
      <h4>
        <Text text={label} /> <Verdict reward={trajectory.reward} status={trajectory.status} />
        {known && <a class="open" href={address([run, trajectory.part, trajectory.task, `@${trajectory.place}`])}>open</a>}
      </h4>
      <Rows rows={trajectory.opening} />
      {trajectory.turns.length > 0 && <ol class="turns">{trajectory.turns.map((turn) => <Turn key={turn.index} turn={turn} where={null} />)}</ol>}
      {trajectory.error && <Long block text={trajectory.error} tone="bad" />}
      <Ending trajectory={trajectory} />
      <Rows rows={trajectory.end} />
    </article>
  );
}
