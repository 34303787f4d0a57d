// A part that is folded until it is opened, and drawn only then.
import { useState } from "preact/hooks";
import { Text } from "./text.js";

export function Fold({ title, children, open = false, class: kind = "" }) {
  const [drawn, setDrawn] = useState(open);
  return (
    <details class={kind} open={open || undefined} onToggle={(event) => event.currentTarget.open && setDrawn(true)}>
      <summary>{typeof title === "string" ? <Text text={title} /> : title}</summary>
      {drawn && <div class="folded">{children}</div>}
    </details>
  );
}
