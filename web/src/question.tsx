// A question: what the reader wrote, as it was written, with copy and edit. An edit asks anew, beside the old wording.
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Branches, CopyButton } from "./branches.tsx";
import type { Place } from "./chat.ts";
import { directionOf } from "./direction.ts";
import { overrides } from "./directions.ts";
import { Icon } from "./icons.tsx";
import { t } from "./i18n.ts";
import { usePage } from "./page.ts";
import { Problem } from "./problem.tsx";

export function Question({ place }: { place: Place }) {
  const { state, actions } = usePage();
  const editing = useSignal(false);
  const { id, text, saved, error } = place.message.value;
  const direction = overrides.value[id] ?? directionOf(text);
  if (editing.value)
    return (
      <article class="message question" aria-label={t("message.question")}>
        <Editor
          text={text}
          done={(changed) => {
            editing.value = false;
            if (changed !== null) actions.edit(place, changed);
          }}
        />
      </article>
    );
  return (
    <article class={`message question ${saved}`} aria-label={t("message.question")}>
      <h2 class="visually-hidden">{t("message.question")}</h2>
      <div class="bubble" dir={direction}>
        {text}
      </div>
      {saved === "refused" && <Problem error={error} lead={t("message.notSent")} action={t("message.resend")} onAction={() => actions.resend(place)} />}
      <footer class="tools">
        <Branches place={place} />
        <CopyButton text={() => place.message.peek().text} />
        <button type="button" class="icon-button" aria-label={t("message.edit")} disabled={state.chat.value.writing.value !== undefined} onClick={() => (editing.value = true)}>
          <Icon name="edit" />
        </button>
      </footer>
    </article>
  );
}

function Editor({ text, done }: { text: string; done: (text: string | null) => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const { current } = field;
    if (!current) return;
    current.focus();
    current.setSelectionRange(text.length, text.length);
    current.style.height = `${current.scrollHeight}px`;
  }, [text]);
  const submit = () => {
    const changed = field.current?.value.trim();
    done(changed ? changed : null);
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <textarea
        ref={field}
        dir="auto"
        aria-label={t("message.editLabel")}
        defaultValue={text}
        onKeyDown={(event) => {
          if (event.isComposing || event.keyCode === 229) return;
          if (event.key === "Escape") {
            event.preventDefault();
            done(null);
          } else if (event.key === "Enter" && !event.shiftKey) {
            event.preventDefault();
            submit();
          }
        }}
      />
      <div class="editor-buttons">
        <button type="button" class="button" onClick={() => done(null)}>
          {t("message.cancel")}
        </button>
        <button type="submit" class="button primary">
          {t("composer.send")}
        </button>
      </div>
    </form>
  );
}
