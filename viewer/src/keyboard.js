// Keys: each page registers what its keys do, before those of the frame. `?` lists them.
import { useEffect, useRef } from "preact/hooks";

const maps = [];

/** [{keys: ["j"], label: "next run", run: () => ...}]; a page's keys are there as long as it is shown. `base`: the frame's. */
export function useKeys(entries, { base = false } = {}) {
  const kept = useRef({ entries });
  kept.current.entries = entries;
  useEffect(() => {
    const map = kept.current;
    if (base) maps.unshift(map); // its effects run after those of the page inside it
    else maps.push(map);
    return () => maps.splice(maps.indexOf(map), 1);
  }, []);
}

/** What the keys do at present, the page's own first. */
export const currentKeys = () => maps.toReversed().map((map) => map.entries.filter((entry) => entry.label));

const typing = (element) => element?.matches?.("input:not([type=checkbox]):not([type=range]), textarea, select") ?? false;

export function startKeyboard() {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (typing(target)) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (document.querySelector("dialog[open]") && event.key !== "?") return;
    // Enter and space belong to a focused control, arrows to a focused slider.
    if ((event.key === "Enter" || event.key === " ") && target.closest?.("a, button, summary, input")) return;
    if (event.key.startsWith("Arrow") && target.closest?.("[type=range]")) return;
    for (const map of maps.toReversed()) {
      const entry = map.entries.find((candidate) => candidate.keys.includes(event.key));
      if (entry && entry.run(event) !== false) {
        event.preventDefault();
        return;
      }
    }
  });
}

/** Move the focus along the elements that match `selector`; the first is taken from where nothing has it. */
export function moveFocus(selector, by) {
  const items = [...document.querySelectorAll(selector)].filter((item) => item.offsetParent !== null);
  if (!items.length) return false;
  const now = items.findIndex((item) => item === document.activeElement || item.contains(document.activeElement));
  const next = now < 0 ? (by > 0 ? 0 : items.length - 1) : Math.min(items.length - 1, Math.max(0, now + by));
  items[next].focus();
  items[next].scrollIntoView({ block: "nearest" });
  return true;
}
