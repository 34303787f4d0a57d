// Charts with uPlot: lines or stacked bands over steps, values at the cursor, colors of the page's theme.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { number, percent } from "./numbers.js";
import { Text, visible } from "./text.js";

// Lines differ by dashes as well as by color.
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 2], [12, 4], [1, 4], [6, 2, 1, 2]];
const HEIGHTS = { "": 190, small: 130, tiny: 96 };
const whole = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000, 500_000, 1_000_000];

/** The colors of the page as the browser draws them now: c1 to c8, and those of axes. */
function palette(element) {
  const probe = document.createElement("span");
  element.append(probe);
  const color = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colors = Object.fromEntries(["soft", "rule", "paper", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"].map((name) => [name, color(name)]));
  probe.remove();
  return colors;
}

const fade = (color, share) => color.replace(/^rgba?\(([\d.]+)[, ]+([\d.]+)[, ]+([\d.]+).*\)$/, `rgba($1, $2, $3, ${share})`);

/** Columns for uPlot: every x of any line, and each line's values there, null where it has none. */
function columns(lines, stacked) {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const values = lines.map((line) => {
    const at = new Map(line.points);
    return xs.map((x) => at.get(x) ?? null);
  });
  if (!stacked) return { xs, values, drawn: values };
  const floor = xs.map(() => 0);
  const drawn = values.map((column) => column.map((value, index) => (floor[index] += value ?? 0)));
  return { xs, values, drawn };
}

const key = (line) => `c${Math.min(8, Math.max(1, line.color || 1))}`;

/** A number of an axis: short, without zeros at its end. */
function short(value) {
  const text = value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1).replace(".0e", "e") : Number(value.toPrecision(6)).toLocaleString("en");
  return text.replaceAll("-", "−");
}

function options(chart, lines, colors, width, hover) {
  const format = chart.percent ? (value) => `${Number((value * 100).toPrecision(4))}%` : short;
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: colors.soft, font, ticks: { show: false }, gap: 6 };
  const dashed = lines.filter((line) => !line.faint).length > 1 && !chart.stacked;
  return {
    width,
    height: HEIGHTS[chart.size] ?? 190,
    padding: [8, 10, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "steps" }, points: { size: 6 } },
    scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { range: heights(chart) } },
    axes: [
      { ...axis, size: 24, incrs: whole, grid: { show: false }, space: 44, values: (_, ticks) => ticks.map((tick, index) => (index ? "" : `${visible(chart.x)} `) + tick.toLocaleString("en")) },
      { ...axis, size: chart.size === "tiny" ? 38 : 44, space: 30, grid: { stroke: colors.rule, width: 1 }, values: (_, ticks) => ticks.map(format) },
    ],
    series: [
      {},
      ...lines.map((line, index) => ({
        stroke: chart.stacked ? colors.paper : fade(colors[key(line)], line.faint ? 0.35 : 1),
        width: chart.stacked || line.faint ? 1 : 2,
        dash: dashed ? DASHES[index % DASHES.length] : [],
        fill: chart.stacked ? fade(colors[key(line)], 0.75) : undefined,
        points: { show: line.points.length === 1, size: 6, fill: colors[key(line)] },
        spanGaps: true,
      })),
    ],
    // Each band is filled down to the one below it.
    bands: chart.stacked ? lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [],
    hooks: { setCursor: [(plot) => hover(plot.cursor.idx ?? null)] },
  };
}

const heights = (chart) => (_, low, high) => {
  if (chart.stacked && chart.percent) return [0, 1];
  const floor = Math.min(0, low ?? 0);
  const top = high == null || high <= floor ? floor + (floor === 0 ? 1 : Math.abs(floor)) : high + (high - floor) * 0.05;
  return [floor, chart.percent ? Math.min(top, Math.max(1, high ?? 1)) : top];
};

const Swatch = ({ line, index, stacked, dashed }) => (
  <svg class={`swatch ${key(line)}`} viewBox="0 0 16 8" width="16" height="8" aria-hidden="true">
    {stacked ? (
      <rect x="3" y="0" width="10" height="8" rx="1.5" />
    ) : (
      <line x1="0" x2="16" y1="4" y2="4" stroke-dasharray={dashed ? DASHES[index % DASHES.length].map((dash) => dash * 0.7).join(" ") : undefined} opacity={line.faint ? 0.45 : 1} />
    )}
  </svg>
);

/** One chart block: its title, its lines by name with the value at the cursor (else the last), and the picture. */
export function Chart({ block }) {
  const box = useRef(null);
  const [at, setAt] = useState(null);
  const lines = block.lines.filter((line) => line.points.length);
  const { xs, values, drawn } = columns(lines, block.stacked);
  const shape = JSON.stringify([block.percent, block.stacked, block.size, lines.map((line) => [line.name, line.color, line.faint, line.points.length === 1])]);
  const plot = useRef(null);
  const latest = useRef(null);
  latest.current = [xs, ...drawn];

  useEffect(() => {
    if (!lines.length) return undefined;
    const make = () => {
      plot.current?.destroy();
      const colors = palette(box.current);
      plot.current = new uPlot(options(block, lines, colors, box.current.clientWidth, setAt), latest.current, box.current);
    };
    make();
    const resize = new ResizeObserver(() => {
      const width = box.current?.clientWidth;
      if (width && plot.current && plot.current.width !== width) plot.current.setSize({ width, height: plot.current.height });
    });
    resize.observe(box.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("midstream:theme", make);
    scheme.addEventListener("change", make);
    return () => {
      resize.disconnect();
      removeEventListener("midstream:theme", make);
      scheme.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  const data = JSON.stringify(latest.current);
  useEffect(() => plot.current?.setData(latest.current), [data]);

  const format = block.percent ? percent : number;
  const valueOf = (index) => (at === null ? lines[index].points.at(-1)[1] : values[index][at]);
  const dashed = lines.filter((line) => !line.faint).length > 1 && !block.stacked;
  // The bands' names stand in the order of the bands, from the top.
  const order = lines.map((_, index) => index);
  if (block.stacked) order.reverse();
  return (
    <figure class={`chart ${block.size}`}>
      <figcaption>
        <b><Text text={block.title} /></b>
        {block.note && <Text class="soft" text={block.note} />}
      </figcaption>
      {lines.length ? (
        <>
          <ul class={`legend ${lines.length > 1 ? "" : "alone"}`} aria-hidden="true">
            {(at !== null || lines.length > 1) && order.map((index) => (
              <li key={index}>
                <Swatch line={lines[index]} index={index} stacked={block.stacked} dashed={dashed} />
                {(lines.length > 1 || lines[index].name !== block.title) && <Text text={lines[index].name} />}
                <b>{format(valueOf(index))}</b>
              </li>
            ))}
            {at !== null && <li class="at">{visible(block.x)} {xs[at]?.toLocaleString("en")}</li>}
          </ul>
          <div class="plot" ref={box} role="img" aria-label={visible(block.summary || block.title)} />
        </>
      ) : (
        <p class="empty">No data yet.</p>
      )}
    </figure>
  );
}
