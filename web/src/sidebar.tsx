// The list of conversations by date, with rename and delete, and the reader's own corner below it. On a phone it is a drawer.
import { useComputed, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { byDate } from "./dates.ts";
import { directionOf } from "./direction.ts";
import { forgetAllDrafts } from "./drafts.ts";
import { Icon } from "./icons.tsx";
import { t } from "./i18n.ts";
import { Menu } from "./menu.tsx";
import { usePage } from "./page.ts";
import type { Conversation } from "./protocol.ts";
import { setTheme, theme, THEMES } from "./theme.ts";

export function Sidebar({ onClose }: { onClose: () => void }) {
  const { state, actions, goTo } = usePage();
  const groups = useComputed(() => byDate(state.listed.value, new Date()));
  return (
    <nav class="sidebar" aria-label={t("sidebar.label")}>
      <div class="sidebar-head">
        <span class="brand">{t("product")}</span>
        <button type="button" class="icon-button only-drawer" aria-label={t("sidebar.close")} onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <button type="button" class="new-chat" onClick={() => goTo(null)}>
        <Icon name="plus" />
        {t("sidebar.new")}
      </button>
      <div class="conversations">
        {groups.value.map(({ label, conversations }) => (
          <section key={label}>
            <h2>{label}</h2>
            <ul>
              {conversations.map((conversation) => (
                <Row key={conversation.id} conversation={conversation} />
              ))}
            </ul>
          </section>
        ))}
        {groups.value.length === 0 && <p class="quiet">{t("sidebar.empty")}</p>}
        {state.nextCursor.value && (
          <button type="button" class="text-button" onClick={() => void actions.showOlder()}>
            {t("sidebar.more")}
          </button>
        )}
      </div>
      <Account />
    </nav>
  );
}

function Row({ conversation: { id, title } }: { conversation: Conversation }) {
  const { state, actions, goTo } = usePage();
  const renaming = useSignal(false);
  const current = state.chat.value.id === id;
  const name = title || t("sidebar.untitled");
  if (renaming.value) return <li class="row"><Rename title={title} done={(newTitle) => {
    renaming.value = false;
    if (newTitle && newTitle !== title) void actions.rename(id, newTitle);
  }} /></li>;
  const open = (event: MouseEvent) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return; // a new tab
    event.preventDefault();
    goTo(id);
  };
  return (
    <li class="row">
      <a href={`/c/${id}`} aria-current={current ? "page" : undefined} onClick={open}>
        <bdi dir={directionOf(name)}>{name}</bdi>
        {state.writing.value.has(id) && <span class="writing" role="img" aria-label={t("sidebar.writing")} />}
      </a>
      <Menu label={t("sidebar.menu", { title: name })} trigger={<Icon name="more" />}>
        <button type="button" onClick={() => (renaming.value = true)}>
          <Icon name="edit" />
          {t("sidebar.rename")}
        </button>
        <button type="button" class="danger" onClick={() => actions.delete({ id, title: name })}>
          <Icon name="trash" />
          {t("sidebar.delete")}
        </button>
      </Menu>
    </li>
  );
}

/** `done` is given the new title, or null where there is none. */
function Rename({ title, done }: { title: string; done: (title: string | null) => void }) {
  const field = useRef<HTMLInputElement>(null);
  const over = useRef(false);
  useLayoutEffect(() => field.current?.select(), []);
  const finish = (result: string | null) => {
    if (over.current) return; // taking the field away blurs it
    over.current = true;
    done(result);
  };
  return (
    <input
      ref={field}
      class="rename"
      dir="auto"
      defaultValue={title}
      maxLength={200}
      aria-label={t("sidebar.renameLabel")}
      onBlur={({ currentTarget }) => finish(currentTarget.value.trim())}
      onKeyDown={(event) => {
        if (event.isComposing) return;
        if (event.key === "Enter") finish(event.currentTarget.value.trim());
        if (event.key === "Escape") {
          event.preventDefault();
          finish(null);
        }
      }}
    />
  );
}

function Account() {
  const { state, actions } = usePage();
  const { name } = state.user.value;
  return (
    <div class="account">
      <Menu
        class="account-button"
        trigger={
          <>
            <span class="avatar" aria-hidden="true">
              {Array.from(name)[0]?.toUpperCase()}
            </span>
            <bdi>{name}</bdi>
          </>
        }
      >
        <fieldset class="themes" onClick={(event) => event.stopPropagation()}>
          <legend>{t("theme.label")}</legend>
          {THEMES.map((one) => (
            <label key={one}>
              <input type="radio" name="theme" checked={theme.value === one} onChange={() => setTheme(one)} />
              {t(`theme.${one}`)}
            </label>
          ))}
        </fieldset>
        <button
          type="button"
          onClick={() => {
            forgetAllDrafts();
            void actions.signOut();
          }}
        >
          <Icon name="signOut" />
          {t("sidebar.signOut")}
        </button>
      </Menu>
    </div>
  );
}
