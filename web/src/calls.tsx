// The calls of tools that an answer makes, and what came of them, each folded away in one line. A program's talk, so it is shown as text.
import type { FunctionCall, FunctionCallOutput } from "./protocol.ts";
import { t } from "./i18n.ts";

export function Calls({ calls }: { calls: readonly FunctionCall[] }) {
  return calls.map(({ call_id, name, arguments: text }) => <Folded key={call_id} title={t("answer.called", { name })} text={text} />);
}

/** A message of role `tool`. */
export function Results({ outputs }: { outputs: readonly FunctionCallOutput[] }) {
  return (
    <article class="message" aria-label={t("message.results")}>
      {outputs.map(({ call_id, output }) => (
        <Folded key={call_id} title={t("message.result")} text={output} />
      ))}
    </article>
  );
}

function Folded({ title, text }: { title: string; text: string }) {
  return (
    <details class="folded">
      <summary>{title}</summary>
      <pre dir="auto">{text}</pre>
    </details>
  );
}
