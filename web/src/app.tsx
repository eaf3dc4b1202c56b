// The frame of the page: the list at the side, the conversation, the composer, and what is said once for all of them.
import { type Signal, useComputed, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Deleted } from "./actions.ts";
import { Composer } from "./composer.tsx";
import { Icon } from "./icons.tsx";
import { t } from "./i18n.ts";
import { usePage } from "./page.ts";
import { Sidebar } from "./sidebar.tsx";
import { Thread } from "./thread.tsx";

export function App({ undo }: { undo: Signal<Deleted | null> }) {
  const { state, actions, announcer, goTo } = usePage();
  const drawer = useSignal(false);
  const title = useComputed(() => state.current.value?.title || t("sidebar.untitled"));
  const empty = useComputed(() => state.chat.value.id === null && state.chat.value.path.value.length === 0);

  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || document.querySelector(":popover-open")) return;
      if (drawer.value) drawer.value = false;
      else actions.stop();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [actions, drawer]);
  useEffect(() => state.chat.subscribe(() => (drawer.value = false)), [state, drawer]);
  useEffect(() => title.subscribe((text) => (document.title = state.chat.peek().id === null ? t("product") : `${text} · ${t("product")}`)), [state, title]);

  return (
    <div class={`page ${drawer.value ? "drawer-open" : ""}`}>
      <a class="skip" href="#conversation">
        {t("skipToChat")}
      </a>
      <Sidebar onClose={() => (drawer.value = false)} />
      {drawer.value && <div class="scrim" onClick={() => (drawer.value = false)} />}
      <main id="conversation" class={empty.value ? "empty" : ""} inert={drawer.value} tabIndex={-1}>
        <header class="bar">
          <button type="button" class="icon-button" aria-label={t("sidebar.open")} aria-expanded={drawer.value} onClick={() => (drawer.value = true)}>
            <Icon name="menu" />
          </button>
          <h1>
            <bdi>{title.value}</bdi>
          </h1>
          <button type="button" class="icon-button" aria-label={t("sidebar.new")} onClick={() => goTo(null)}>
            <Icon name="plus" />
          </button>
        </header>
        {empty.value ? <p class="greeting" dir="auto">{t("chat.greeting", { name: state.user.value.name })}</p> : <Thread />}
        <Composer />
      </main>
      <div class="notices" role="status">
        {state.connection.lost.value && <p class="notice">{t("connection.lost")}</p>}
        {undo.value && (
          <p class="notice">
            <bdi>{t("sidebar.deleted", { title: undo.value.title })}</bdi>
            <button type="button" class="text-button" onClick={() => undo.value && actions.undoDelete(undo.value)}>
              {t("sidebar.undo")}
            </button>
          </p>
        )}
      </div>
      <div class="visually-hidden" aria-live="polite">
        {announcer.words}
      </div>
    </div>
  );
}
