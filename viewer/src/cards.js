// Lessons: what each says, its effect with an interval, where it comes from, and votes.
import { Blocks } from "./blocks.js";
import { Feedback } from "./feedback.js";
import { Fold } from "./fold.js";
import { IntervalMark } from "./marks.js";
import { Long, Text } from "./text.js";

export function Cards({ cards, run }) {
  if (!cards.length) return <p class="empty">None yet.</p>;
  return (
    <ul class="cards">
      {cards.map((card) => (
        <li class="card" key={card.id}>
          {card.struck ? <s><Long text={card.text} /></s> : <Long text={card.text} />}
          <div class="card-facts">
            {card.interval && <IntervalMark {...card.interval} />}
            {card.facts.map((fact, index) => (
              <Text key={index} text={fact} />
            ))}
          </div>
          {card.blocks.length > 0 && (
            <Fold title="History and evidence">
              <Blocks blocks={card.blocks} run={run} />
            </Fold>
          )}
          {(card.vote || card.given) && run && <Feedback run={run} target={{ lesson: card.id }} given={card.given ?? null} />}
        </li>
      ))}
    </ul>
  );
}
