// Small marks inside text and tables: sparkline, interval, bar, state. Each has words for readers who do not see it.
import { fixed, number, percent, signed } from "./numbers.js";
import { Text, visible } from "./text.js";

/** Values in order as a small line. */
export function Spark({ values, label = "" }) {
  const known = values.filter((value) => Number.isFinite(value));
  if (known.length < 2) return <span class="soft">–</span>;
  const [width, height, pad] = [92, 20, 2.5];
  const low = Math.min(0, ...known);
  const high = Math.max(...known, low + 1e-9);
  const x = (index) => pad + (index / (known.length - 1)) * (width - 2 * pad);
  const y = (value) => height - pad - ((value - low) / (high - low)) * (height - 2 * pad);
  const words = `${label} from ${number(known[0])} to ${number(known.at(-1))} over ${known.length} values`.trim();
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={words}>
      <polyline points={known.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ")} />
      <circle cx={x(known.length - 1)} cy={y(known.at(-1))} r="2" />
    </svg>
  );
}

/** An interval on an axis from -span to span, with zero marked. */
export function IntervalMark({ low, mid, high, span }) {
  const [width, height] = [120, 18];
  const x = (value) => width / 2 + (Math.max(-1, Math.min(1, span ? value / span : 0)) * (width - 8)) / 2;
  const tone = low > 0 ? "up" : high < 0 ? "down" : "soft";
  const words = `${signed(mid)}, interval ${signed(low)} to ${signed(high)}`;
  return (
    <svg class={`interval ${tone}`} viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={words}>
      <line class="axis" x1="2" x2={width - 2} y1="9" y2="9" />
      <line class="zero" x1={width / 2} x2={width / 2} y1="2" y2="16" />
      <line class="reach" x1={x(low)} x2={x(high)} y1="9" y2="9" />
      <circle cx={x(mid)} cy="9" r="3.5" />
    </svg>
  );
}

/** A success rate with its interval on an axis from 0 to 100 %, and as a number. */
export function Success({ value, interval, before }) {
  if (value == null) return <span class="soft">–</span>;
  const [width, height] = [72, 14];
  const x = (share) => 3 + Math.max(0, Math.min(1, share)) * (width - 6);
  const words = interval ? `95% interval ${percent(interval[0])} to ${percent(interval[1])}` : "no interval";
  return (
    <span class="success">
      <b>{percent(value)}</b>
      <svg class="interval rate" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={words}>
        <line class="axis" x1="3" x2={width - 3} y1="7" y2="7" />
        {interval && <line class="reach" x1={x(interval[0])} x2={x(interval[1])} y1="7" y2="7" />}
        {before != null && <line class="before" x1={x(before)} x2={x(before)} y1="2" y2="12" />}
        <circle cx={x(value)} cy="7" r="3" />
      </svg>
    </span>
  );
}

/** A number with a bar from zero; `span` is the value that fills its half. */
export function Bar({ value, span = 1, sign = false, digits, percent: share = false }) {
  if (value == null) return <span class="soft">–</span>;
  const [width, height] = [sign ? 56 : 40, 6];
  const zero = sign ? width / 2 : 0;
  const length = Math.min(1, Math.abs(value) / (span || 1)) * (sign ? width / 2 : width);
  return (
    <span class="meter">
      <span class="n">{sign ? signed(value) : share ? percent(value) : number(digits === undefined ? value : Number(fixed(value, digits)))}</span>
      <svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} aria-hidden="true">
        <rect class="track" x="0" y="2" width={width} height="2" />
        <rect class={value < 0 ? "down" : "up"} x={value < 0 ? zero - length : zero} y="0" width={length} height={height} />
        {sign && <line class="zero" x1={zero} x2={zero} y1="0" y2={height} />}
      </svg>
    </span>
  );
}

const STATES = { running: "c1", finished: "up", failed: "bad", interrupted: "warn" };

/** The state of a run: a shape and a word. */
export function State({ state, message = "" }) {
  const shape = {
    running: <circle cx="5" cy="5" r="3.2" class="pulse" />,
    finished: <path d="M1.5 5.2 4 7.8 8.6 2.4" />,
    failed: <path d="M2 2l6 6M8 2l-6 6" />,
    interrupted: <path d="M3.2 1.8v6.4M6.8 1.8v6.4" />,
  }[state];
  return (
    <span class={`state ${STATES[state] ?? ""}`} title={message ? visible(message) : undefined}>
      <svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">{shape}</svg>
      <Text text={state} />
    </span>
  );
}

/** How a rollout ended: solved, partly, not solved, not judged, lost to an error. */
export function verdict(reward, status) {
  if (status === "error") return ["error", "bad"];
  if (reward == null) return ["not judged", "soft"];
  if (reward >= 1) return ["solved", "up"];
  return reward <= 0 ? ["not solved", "down"] : ["partly solved", "warn"];
}

const SHAPES = { up: "M1.5 5.2 4 7.8 8.6 2.4", down: "M2 2l6 6M8 2l-6 6", warn: "M1.5 5h7", bad: "M5 1v5M5 8v1.4", soft: "M3 5h4" };

export function Verdict({ reward, status }) {
  const [word, tone] = verdict(reward, status);
  return (
    <span class={`state ${tone}`}>
      <svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true"><path d={SHAPES[tone]} /></svg>
      {word}
    </span>
  );
}

/** Icons of a thumb; the word stands next to it or in the label. */
export const Thumb = ({ down = false }) => (
  <svg class={down ? "thumb flipped" : "thumb"} viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
    <path d="M5 7.2 7.6 2c1.2 0 1.9.9 1.7 2l-.4 2.4h3.6c.8 0 1.4.8 1.2 1.6l-1.1 4.4c-.2.7-.8 1.1-1.4 1.1H5M5 7.2v6.3H2.6V7.2z" />
  </svg>
);
