// The field in which one writes. It grows with the text, keeps a draft per conversation, and its one button sends or stops.
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { draft, forgetDraft, keepDraft } from "./drafts.ts";
import { Icon } from "./icons.tsx";
import { t } from "./i18n.ts";
import { usePage } from "./page.ts";

const TOUCH = matchMedia("(hover: none) and (pointer: coarse)"); // there Enter is the only way to a new line

export function Composer() {
  const { state, actions, follower } = usePage();
  const field = useRef<HTMLTextAreaElement>(null);
  const empty = useSignal(true);
  const chat = state.chat.value;
  const writing = chat.writing.value !== undefined;

  const changed = () => {
    const { current } = field;
    if (!current) return;
    empty.value = current.value.trim() === "";
    current.style.height = "auto"; // so that it can become smaller too
    current.style.height = `${current.scrollHeight}px`;
  };

  useLayoutEffect(() => {
    if (!field.current) return;
    field.current.value = draft(chat.id);
    changed();
    if (!TOUCH.matches) field.current.focus();
  }, [chat]);

  const send = () => {
    const text = field.current?.value.trim();
    if (!field.current || !text || writing) return;
    forgetDraft(chat.id);
    field.current.value = "";
    changed();
    actions.send(text);
    follower.toEnd();
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        if (writing) actions.stop();
        else send();
      }}
    >
      <div class="composer-field">
        <textarea
          ref={field}
          rows={1}
          dir="auto"
          aria-label={t("composer.label")}
          placeholder={t("composer.placeholder")}
          enterkeyhint={TOUCH.matches ? "enter" : "send"}
          onInput={({ currentTarget }) => {
            changed();
            keepDraft(chat.id, currentTarget.value);
          }}
          onKeyDown={(event) => {
            const composing = event.isComposing || event.keyCode === 229; // 229: Safari ends a composition before its Enter
            if (event.key !== "Enter" || event.shiftKey || composing || TOUCH.matches) return;
            event.preventDefault();
            send();
          }}
        />
        <button type="submit" class="send" aria-label={writing ? t("composer.stop") : t("composer.send")} disabled={!writing && empty.value}>
          <Icon name={writing ? "stop" : "send"} />
        </button>
      </div>
      <p class="note">{t("composer.note")}</p>
    </form>
  );
}
