// The entries of a part, asked for as they come into view: by place without a filter, else one answer after the other.
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, get, isLive, listenTo, paths } from "./source.js";

export const FILTERS = ["reward", "status", "tool", "error", "text", "family", "cause", "where"];
const PAGE = 200;

// As the server reads it, see midstream/view/entries.py.
const REWARD = /^(<=|>=|<|>|)(-?\d+(?:\.\d+)?)$/;

/** Raises `Refused` for what is no filter. */
function check({ reward, status, where }) {
  if (where && !isLive()) throw new Refused(422, "this file evaluates no expressions", "", "midstream view RUN does");
  if (reward && reward !== "none" && reward !== "wrong" && !REWARD.test(reward)) throw new Refused(422, `reward = '${reward}' is no filter`, "", "a number such as 1 or <0.5, none, or wrong");
  if (status && status !== "ok" && status !== "error") throw new Refused(422, `status = '${status}' is no filter`, "", "ok or error");
}

const rewardFits = (wish, reward) => {
  if (reward == null || wish === "none") return reward == null && wish === "none";
  const match = REWARD.exec(wish);
  const value = Number(match[2]);
  return { "<": reward < value, ">": reward > value, "<=": reward <= value, ">=": reward >= value }[match[1]] ?? reward === value;
};

/** Whether an entry of a file fits; the trajectory is looked at for what the entry lacks. */
async function fits(entry, filter, path) {
  if (filter.family && entry.family !== filter.family) return false;
  if (filter.reward === "wrong") {
    if (entry.status === "ok" && entry.reward >= 1) return false;
  } else if (filter.reward && !rewardFits(filter.reward, entry.reward)) return false;
  if (filter.status && entry.status !== filter.status) return false;
  if (!filter.tool && !filter.error && !filter.text) return true;
  const trajectory = await get(`${path}/trajectory/${entry.place}`).catch(() => null);
  const turns = trajectory?.turns ?? [];
  const rows = turns.flatMap((turn) => turn.rows);
  const calls = rows.filter((row) => row.label === "command" || row.label === "call");
  if (filter.tool && !turns.some((turn) => turn.tool === filter.tool) && !calls.some((row) => row.text.startsWith(`${filter.tool}(`))) return false;
  const failed = rows.filter((row) => row.tone === "bad").map((row) => row.text);
  const errors = [trajectory?.error, ...turns.map((turn) => turn.error), ...failed].filter(Boolean).join("\n").toLowerCase();
  if (filter.error === "*" ? !errors && entry.status !== "error" : !errors.includes(filter.error.toLowerCase())) return false;
  const text = () => `${entry.task}\n${entry.question ?? ""}\n${entry.answer ?? ""}\n${JSON.stringify(trajectory ?? "")}`.toLowerCase();
  return !filter.text || text().includes(filter.text.toLowerCase());
}

/** One answer in the live server's form, from a document that holds all entries. */
async function filterEntries(path, filter, from, limit) {
  const doc = await get(path);
  const causes = filter.cause ? (await get(`${path}/failures`)).causes : [];
  const ofCause = new Set(causes.find((group) => group.cause === filter.cause)?.rollouts.map((rollout) => rollout.place));
  const entries = [];
  let place = from;
  for (; place < doc.entries.length && entries.length < limit; place++) {
    if (filter.cause && !ofCause.has(place)) continue;
    if (await fits(doc.entries[place], filter, path)) entries.push(doc.entries[place]);
  }
  return { part: doc.part, entries, next: place < doc.entries.length ? place : null, scanned: place - from };
}

/**
 * {part, count, at(index), more(index), scanned, done, error} of a part under a filter. `count` is the number of rows
 * known now; `more(first, last)` asks for what rows first to last lack.
 */
export function useEntries(run, part, filter) {
  const path = paths.part(run, part);
  const key = `${path}?${JSON.stringify(filter)}`;
  const any = Object.values(filter).some(Boolean);
  const [, redraw] = useState(0);
  const kept = useRef(null);
  if (kept.current?.key !== key) {
    kept.current = { key, part: kept.current?.path === path ? kept.current.part : null, path, rows: new Map(), count: 0, next: 0, scanned: 0, busy: new Set(), error: null, done: false };
  }
  const held = kept.current;
  const ask = (from, limit) => (isLive() ? get(path, { ...filter, from, limit }) : filterEntries(path, filter, from, limit));

  const load = async (from, index) => {
    if (held.busy.has(from)) return;
    held.busy.add(from);
    try {
      check(filter);
      const doc = await ask(from, PAGE);
      held.part = doc.part;
      held.error = null;
      if (any) {
        doc.entries.forEach((entry, place) => held.rows.set(index + place, entry));
        held.count = index + doc.entries.length;
        held.scanned += doc.scanned ?? 0;
        held.next = doc.next;
        held.done = doc.next === null;
      } else {
        doc.entries.forEach((entry) => held.rows.set(entry.place, entry));
        // A run that is being written may hold more entries than it had when its part was counted.
        held.count = Math.max(held.count, doc.part.count ?? 0, ...doc.entries.slice(-1).map((entry) => entry.place + 1));
        held.done = true;
      }
    } catch (error) {
      held.error = error;
    }
    held.busy.delete(from);
    if (kept.current === held) redraw((count) => count + 1);
  };

  useEffect(() => {
    load(0, 0);
    return listenTo((news) => {
      if (news.runs === null && held.error) load(any ? (held.next ?? 0) : 0, any ? held.count : 0); // connected again
      // Without a filter a growing part shows its new entries; under a filter the list stays as it was read.
      if (!any && !part.startsWith("step-") && news.runs?.includes(run)) load(Math.floor(held.count / PAGE) * PAGE, 0);
    });
  }, [key]);

  const more = (first, last) => {
    if (held.error) return;
    if (any) {
      // A slow filter may answer with few rows and a place to continue from.
      if (held.next !== null && held.scanned > 0 && last >= held.count - 20) load(held.next, held.count);
      return;
    }
    for (let from = Math.floor(first / PAGE) * PAGE; from <= last && from < held.count; from += PAGE) {
      const end = Math.min(from + PAGE, held.count);
      for (let place = from; place < end; place++) {
        if (!held.rows.has(place)) {
          load(from, from);
          break;
        }
      }
    }
  };
  return { part: held.part, count: held.count, at: (index) => held.rows.get(index), more, scanned: held.scanned, done: held.done, busy: held.busy.size > 0, error: held.error, filtered: any };
}
