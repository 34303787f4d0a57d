// Hooks over the source: a document that stays up to date, and the address.
import { useEffect, useRef, useState } from "preact/hooks";
import { encode, parse } from "./address.js";
import { get, listenTo } from "./source.js";

/** The parsed address, again whenever it changes. */
export function useAddress() {
  const [at, setAt] = useState(() => parse(location.hash));
  useEffect(() => {
    const read = () => setAt(parse(location.hash));
    addEventListener("hashchange", read);
    addEventListener("midstream:address", read);
    return () => {
      removeEventListener("hashchange", read);
      removeEventListener("midstream:address", read);
    };
  }, []);
  return at;
}

const PAUSE = 400; // ms between two loads of one document while its run changes

// Of what a finished step holds only people's judgments change: those of a group and of a trajectory.
const concerns = (path, runs) =>
  runs === null || path === "runs" || path.split("/").some((name) => runs.some((run) => encode(run) === name));
const grows = (path) => !path.includes("/part/step-") || /\/(group|trajectory)\/[^/]+$/.test(path);

/** {doc, error, loading} of a document; after a change of its run the former one stays until the next is there. */
export function useDoc(path, query = {}) {
  const key = path === null ? null : `${path}?${new URLSearchParams(query)}`;
  const [state, setState] = useState({ key: null });
  const text = useRef("");
  const shown = useRef(null); // the key of what stands without an error
  useEffect(() => {
    if (key === null) return undefined;
    let over = false;
    let busy = false;
    let again = false;
    let failed = false;
    const load = async () => {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        const doc = await get(path, query);
        failed = false;
        const now = JSON.stringify(doc);
        if (!over && (text.current !== now || shown.current !== key)) {
          shown.current = key;
          text.current = now;
          setState({ key, path, doc });
        }
      } catch (error) {
        failed = true;
        shown.current = null;
        if (!over) setState((former) => ({ key, path, doc: former.key === key ? former.doc : undefined, error }));
      }
      busy = false;
      if (again && !over) {
        again = false;
        setTimeout(load, PAUSE);
      }
    };
    load();
    const stop = listenTo((news) => {
      if (news.runs !== undefined && (failed || grows(path)) && concerns(path, news.runs)) load();
    });
    return () => {
      over = true;
      stop();
    };
  }, [key]);
  if (state.key === key) return { doc: state.doc, error: state.error, loading: false };
  // Another query of the same document: the former answer stands until the next one is there.
  return { doc: state.path === path ? state.doc : undefined, loading: key !== null };
}

// --- the theme --------------------------------------------------------------------------------------------------------

const KEY = "midstream-theme";

const storage = () => {
  try {
    return globalThis.localStorage;
  } catch {
    return null; // some browsers keep it from file://
  }
};

export function initialTheme() {
  const kept = storage()?.getItem(KEY);
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}

/** Switch between light and dark; charts hear of it by "midstream:theme". */
export function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    storage()?.setItem(KEY, root.dataset.theme);
  } catch {
    // a full or forbidden storage: the choice holds for this page
  }
  dispatchEvent(new Event("midstream:theme"));
  return root.dataset.theme;
}

// --- announcements ----------------------------------------------------------------------------------------------------

/** Have screen readers say a sentence, politely. */
export function announce(sentence) {
  const region = document.getElementById("news");
  if (region) region.textContent = sentence;
}
