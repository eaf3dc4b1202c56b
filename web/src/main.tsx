// The start of the chat: reads what the server put into the page, makes the parts and draws them. Nothing else happens at load.
import { signal } from "@preact/signals";
import { render } from "preact";
import { Actions, type Deleted } from "./actions.ts";
import { Announcer } from "./announcer.ts";
import { App } from "./app.tsx";
import { speak } from "./i18n.ts";
import { PageProvider } from "./page.ts";
import { Follower } from "./scroll.ts";
import { type InitialState, State } from "./state.ts";

const initial = JSON.parse(document.getElementById("state")?.textContent ?? "null") as InitialState;
const root = document.getElementById("app") as HTMLElement;
speak(initial.language, initial.words);

const state = new State(`${location.origin.replace(/^http/, "ws")}/ws`);
const follower = new Follower();
const undo = signal<Deleted | null>(null);
const actions = new Actions(state, goTo, (deleted) => (undo.value = deleted));

const pathOf = (id: string | null) => (id === null ? "/" : `/c/${id}`);
const idOf = (path: string) => /^\/c\/([^/]+)$/.exec(path)?.[1] ?? null;

function goTo(id: string | null, replace = false): void {
  if (location.pathname !== pathOf(id)) history[replace ? "replaceState" : "pushState"](null, "", pathOf(id));
  state.show(id);
  follower.toEnd();
}

addEventListener("popstate", () => {
  state.show(idOf(location.pathname));
  follower.toEnd();
});
state.onConversation = (id) => history.replaceState(null, "", pathOf(id));
state.onSignedOut = () => location.assign(`/sign-in?next=${encodeURIComponent(location.pathname)}`);
state.begin(initial);

root.replaceChildren();
render(
  <PageProvider value={{ state, actions, follower, announcer: new Announcer(), goTo }}>
    <App undo={undo} />
  </PageProvider>,
  root,
);
