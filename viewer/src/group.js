// The rollouts of one task side by side, aligned by turn; what all of them did is written once.
import { useState } from "preact/hooks";
import { address, go, setQuery } from "./address.js";
import { useKeys } from "./keyboard.js";
import { Bar, Thumb, Verdict } from "./marks.js";
import { counted, integer } from "./numbers.js";
import { Shown } from "./shown.js";
import { paths } from "./source.js";
import { useDoc } from "./state.js";
import { Long, Short, Text } from "./text.js";

const SHOWN = 40; // turns at first

const same = (turns) => turns.every((turn) => turn && turn.tool === turns[0].tool && turn.brief === turns[0].brief && turn.tone === turns[0].tone);

function Cell({ turn }) {
  if (!turn) return <span class="soft" aria-label="no such turn">·</span>;
  // A command names its tool already.
  const brief = turn.tool && turn.brief.startsWith(`${turn.tool}(`) ? turn.brief.slice(turn.tool.length) : turn.brief;
  return (
    <span class={`step ${turn.tone}`}>
      {turn.tool && <b><Short text={turn.tool} limit={40} /></b>} <Short text={brief} limit={120} />
      {turn.tone === "bad" && <span class="hidden"> (failed)</span>}
    </span>
  );
}

function Head({ name, rollouts, children }) {
  return (
    <tr>
      <th scope="row">{name}</th>
      {rollouts.map((rollout, index) => <td key={index}>{children(rollout, index)}</td>)}
    </tr>
  );
}

function Table({ base, group, query, turns }) {
  const { rollouts, first_difference: first } = group;
  const span = Math.max(1, ...rollouts.map((rollout) => Math.abs(rollout.reward ?? 0)));
  const reach = Math.max(1e-9, ...rollouts.map((rollout) => Math.abs(rollout.advantage ?? 0)));
  const at = [Number(query.turn ?? -1), Number(query.rollout ?? -1)];
  return (
    <table class="group">
      <thead>
        <tr>
          <th scope="col">Rollout</th>
          {rollouts.map((rollout, index) => (
            <th key={index} scope="col" class={at[1] === index ? "active" : ""}>
              <a href={address([...base, index])} data-cell={`-1:${index}`}>Rollout {index}</a>
              {rollout.vote && <><Thumb down={rollout.vote === "down"} /><span class="hidden">thumb {rollout.vote}</span></>}
            </th>
          ))}
        </tr>
        <Head name="Outcome" rollouts={rollouts}>{(rollout) => <Verdict reward={rollout.reward} status={rollout.status} />}</Head>
        <Head name="Reward" rollouts={rollouts}>{(rollout) => <Bar value={rollout.reward} span={span} />}</Head>
        {rollouts.some((rollout) => rollout.advantage != null) && (
          <Head name="Advantage" rollouts={rollouts}>{(rollout) => <Bar value={rollout.advantage} span={reach} sign />}</Head>
        )}
        <Head name="Answer" rollouts={rollouts}>{(rollout) => (rollout.answer == null ? <span class="soft">none</span> : <Short text={rollout.answer} limit={90} />)}</Head>
        <Head name="Stopped by" rollouts={rollouts}>{(rollout) => <Short class="soft" text={rollout.stop} limit={40} />}</Head>
        <Head name="Tokens" rollouts={rollouts}>{(rollout) => <span class="soft">{integer(rollout.tokens)}</span>}</Head>
      </thead>
      <tbody>
        {Array.from({ length: turns }, (_, row) => {
          const cells = rollouts.map((rollout) => rollout.turns[row]);
          const shared = rollouts.length > 1 && same(cells);
          return (
            <tr key={row} class={row === first ? "differs" : ""}>
              <th scope="row">
                Turn {row + 1}
                {row === first && <span class="first">first difference</span>}
              </th>
              {shared ? (
                <td colspan={rollouts.length} class="shared">
                  <div>
                    <a href={address([...base, 0, row + 1])} data-cell={`${row}:0`}><Cell turn={cells[0]} /></a>
                    <span class="soft">all {rollouts.length} the same</span>
                  </div>
                </td>
              ) : (
                cells.map((turn, index) => (
                  <td key={index}>
                    {turn ? <a href={address([...base, index, row + 1])} data-cell={`${row}:${index}`}><Cell turn={turn} /></a> : <Cell turn={turn} />}
                  </td>
                ))
              )}
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

const leftOut = (reason) =>
  reason === "all rewards are equal: every advantage is 0"
    ? "All rewards are equal: every advantage is 0, and only a KL term trains."
    : `Not trained on: ${reason}`;

export function Group({ run, part, task, query }) {
  const state = useDoc(paths.group(run, part, task));
  const [limit, setLimit] = useState(SHOWN);
  const base = [run, part, task];
  const rollouts = state.doc?.rollouts ?? [];
  const depth = Math.max(0, ...rollouts.map((rollout) => rollout.turns.length));
  const at = () => (document.activeElement?.dataset.cell ?? "").split(":").map(Number);
  const focus = (row, column) => {
    const cell = document.querySelector(`[data-cell="${row}:${column}"]`) ?? document.querySelector(`[data-cell="${row}:0"]`);
    if (!cell) return false;
    cell.focus();
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    setQuery({ turn: row < 0 ? "" : row, rollout: column });
    return true;
  };
  // A turn that all share has one cell: the column is remembered through it.
  const move = (rows, columns) => {
    const now = at();
    if (now.length !== 2) return focus(-1, 0);
    const column = columns ? now[1] + columns : Number(query.rollout ?? now[1]);
    return focus(Math.max(-1, Math.min(depth - 1, now[0] + rows)), Math.max(0, Math.min(rollouts.length - 1, column)));
  };
  useKeys([
    { keys: ["j", "ArrowDown"], label: "next turn", run: () => move(1, 0) },
    { keys: ["k", "ArrowUp"], label: "previous turn", run: () => move(-1, 0) },
    { keys: ["l", "ArrowRight"], label: "next rollout", run: () => move(0, 1) },
    { keys: ["h", "ArrowLeft"], label: "previous rollout", run: () => move(0, -1) },
    { keys: ["f"], label: "first turn that differs", run: () => state.doc?.first_difference != null && focus(state.doc.first_difference, 0) },
    { keys: ["Enter"], label: "open the rollout at the turn", run: () => (rollouts.length ? go(address([...base, 0])) : false) },
  ]);
  return (
    <Shown state={state}>
      {(group) => (
        <>
          <div class="page-head">
            <h1 tabindex="-1" class="question"><Short text={group.question || group.task} limit={600} /></h1>
            <p class="facts-line">
              <span>{counted(group.rollouts.length, "rollout")}</span>
              <span class="mono"><Short text={group.task} /></span>
              {group.family && <span><Text text={group.family} /></span>}
              {group.gold != null && <span>correct answer <b><Short text={group.gold} limit={200} /></b></span>}
            </p>
            {group.left_out && <Long text={leftOut(group.left_out)} tone="warn" />}
          </div>
          <div class="scroll" role="group" tabindex="0" aria-label="Rollouts by turn">
            <Table base={base} group={group} query={query} turns={Math.min(depth, limit)} />
          </div>
          {depth > limit && (
            <p><button type="button" onClick={() => setLimit(limit + 10 * SHOWN)}>Show more of {integer(depth)} turns</button></p>
          )}
        </>
      )}
    </Shown>
  );
}
