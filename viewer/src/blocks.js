// Draws the blocks of a page, which midstream/report/blocks.py makes. All their text is plain text.
import { address } from "./address.js";
import { Cards } from "./cards.js";
import { Change, Difference } from "./change.js";
import { Chart } from "./chart.js";
import { Fold } from "./fold.js";
import { IntervalMark, Spark } from "./marks.js";
import { Long, Short, Text, visible } from "./text.js";
import { TrajectoryCard } from "./turns.js";

const Tiles = ({ tiles }) => (
  <dl class="tiles">
    {tiles.map((tile) => (
      <div key={tile.name}>
        <dt><Text text={tile.name} /></dt>
        <dd>
          {tile.before && (
            <small>
              <Text text={tile.before} /> <span aria-label="to">→</span>{" "}
            </small>
          )}
          <Text text={tile.value} />
        </dd>
        {tile.note && <dd class="note"><Text text={tile.note} /></dd>}
      </div>
    ))}
  </dl>
);

function CellContent({ cell, run, number = false }) {
  const { text = "", tone = "", interval, spark, part, filters } = typeof cell === "string" ? { text: cell } : cell;
  const href = part && run ? address([run, part], filters) : undefined;
  const words = <Short text={number ? text.replace(/-(?=\d)/g, "−") : text} limit={400} class={tone} />;
  return (
    <>
      {href ? <a href={href}>{words}</a> : words}
      {interval && <IntervalMark {...interval} />}
      {spark && <Spark values={spark} />}
    </>
  );
}

const lengthOf = (cell) => (typeof cell === "string" ? cell : (cell.text ?? "")).length;

/** A table that scrolls inside the page where it is wide; the first cell of a row is its head. */
export function Table({ block, run }) {
  const { caption, columns, rows } = block;
  // A column of sentences takes the room that is left, and wraps.
  const wraps = columns.map((column, index) => column.align !== "right" && rows.some((row) => lengthOf(row.cells[index] ?? "") > 42));
  return (
    <div class="scroll" role="group" tabindex="0" aria-label={visible(caption) || "Table"}>
      <table>
        {caption && <caption><Text text={caption} /></caption>}
        <thead>
          <tr>
            {columns.map((column, index) => (
              <th key={index} scope="col" class={column.align === "right" ? "n" : ""}><Text text={column.name} /></th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index} class={row.total ? "total" : ""}>
              {row.cells.map((cell, place) => {
                const number = columns[place]?.align === "right";
                const kind = `${number ? "n" : ""} ${wraps[place] ? "wrap" : ""}`.trim();
                return place === 0 ? (
                  <th key={place} scope="row" class={kind}><CellContent cell={cell} run={run} /></th>
                ) : (
                  <td key={place} class={kind}><CellContent cell={cell} run={run} number={number} /></td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const Facts = ({ facts }) => (
  <dl class="facts">
    {facts.map(([name, value], index) => (
      <div key={index}>
        <dt><Text text={name} /></dt>
        <dd><Long text={value?.text ?? String(value)} tone={value?.tone ?? ""} limit={600} />{value?.interval && <IntervalMark {...value.interval} />}</dd>
      </div>
    ))}
  </dl>
);

const SideBySide = ({ block, run }) => (
  <section class="side-by-side">
    <h3><Short text={block.task} limit={400} /></h3>
    {block.gold != null && <p>Correct answer: <b><Short text={block.gold} /></b></p>}
    <div class="pair">
      {block.runs.map(({ label, trajectory }, index) => (
        <TrajectoryCard key={index} label={label} trajectory={trajectory} run={run} />
      ))}
    </div>
  </section>
);

/** Charts side by side; small ones next to large ones stand below each other. */
function Charts({ charts }) {
  const draw = (some) => withKeys(some).map(([key, chart]) => <Chart key={key} block={chart} />);
  const large = charts.filter((chart) => !chart.size);
  if (!large.length || large.length === charts.length) return <div class={`charts ${charts[0]?.size ?? ""}`}>{draw(charts)}</div>;
  return (
    <div class="charts">
      {draw(large)}
      <div class="column">{draw(charts.filter((chart) => chart.size))}</div>
    </div>
  );
}

function Block({ block, run }) {
  switch (block.kind) {
    case "heading": return <h3><Text text={block.text} /></h3>;
    case "text": return <Long text={block.text} tone={block.tone} limit={4000} />;
    case "tiles": return <Tiles tiles={block.tiles} />;
    case "table": return <Table block={block} run={run} />;
    case "chart": return <Chart block={block} />;
    case "charts": return <Charts charts={block.blocks} />;
    case "facts": return <Facts facts={block.facts} />;
    case "code": return <Long block text={block.text} limit={20_000} lines={500} />;
    case "fold": return <Fold title={block.title}><Blocks blocks={block.blocks} run={run} /></Fold>;
    case "difference": return <Difference lines={block.lines} />;
    case "change": return <Change key={`${block.update} ${block.lesson}`} block={block} run={run} />;
    case "cards": return <Cards cards={block.cards} run={run} />;
    case "runs": return <SideBySide block={block} run={run} />;
    default: return <p class="soft">This page does not know blocks of the kind <Text text={block.kind} />.</p>;
  }
}

/**
 * [key, block] of blocks. A block keeps its place by kind and title, so that what is open or focused stays so while a run
 * grows; the numbers in a title change then, so they do not count.
 */
function withKeys(blocks) {
  const seen = new Map();
  return blocks.map((block) => {
    const name = `${block.kind}:${block.title ?? block.caption ?? block.task ?? ""}`.replace(/[\d.,%−-]+/g, "#");
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return [`${name}:${seen.get(name)}`, block];
  });
}

export const Blocks = ({ blocks, run }) => withKeys(blocks).map(([key, block]) => <Block key={key} block={block} run={run} />);

/** The sections of a page. */
export const Sections = ({ page, run }) =>
  page.sections.map((section) => (
    <section class="section" key={section.key} data-section={section.key} aria-label={visible(section.title)}>
      <h2 tabindex="-1"><Text text={section.title} /></h2>
      <Blocks blocks={section.blocks} run={run} />
    </section>
  ));
