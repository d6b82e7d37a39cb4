// Signing in and out. The session itself is an HttpOnly cookie that scripts never see.
import { t } from "./text";

export type Role = "viewer" | "clinician" | "administrator";

export interface Session {
  readonly name: string;
  readonly role: Role;
  // The wall display's name, where no person has signed in.
  readonly kiosk?: string;
}

const KIOSK = "/api/kiosk";
const KNOWN = "braid.kiosk";

export class SignInError extends Error {}

// current throws when it is not known whether there is a session: only an answer ends one.
export async function current(): Promise<Session | null> {
  const response = await fetch("/api/session", { cache: "no-store" });
  if (response.status === 204) return null;
  if (response.status !== 200) throw new Error(`the dashboard answers ${response.status}`);
  return (await response.json()) as Session;
}

// viaProvider reports whether people may sign in at a provider, at /api/sso/begin.
export async function viaProvider(): Promise<boolean> {
  try {
    const response = await fetch("/api/sso", { cache: "no-store" });
    return response.ok && ((await response.json()) as { available: boolean }).available;
  } catch {
    return false;
  }
}

async function post(path: string, body: object): Promise<Session> {
  let response: Response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new SignInError(t("The dashboard cannot be reached. Check the connection and try again."));
  }
  if (response.ok) return (await response.json()) as Session;
  if (response.status === 429) {
    const seconds = Number(response.headers.get("retry-after") ?? "30");
    throw new SignInError(t("Too many attempts. Try again in {seconds} s.", { seconds }));
  }
  if (response.status === 401) {
    throw new SignInError("code" in body ? t("This link was used already or has expired.") : t("Name or password is wrong."));
  }
  if (response.status === 403 && path === KIOSK) throw new SignInError(sentence(await response.text()));
  throw new SignInError(t("Signing in failed on the server. Try again in a moment."));
}

export function signIn(name: string, password: string): Promise<Session> {
  return post("/api/sign-in", { name, password });
}

// exchange turns the code of a one-time link into a session.
export function exchange(code: string): Promise<Session> {
  return post("/api/sign-in-code", { code });
}

// openKiosk makes this browser a wall display, by the code of a link that works once.
export function openKiosk(code: string): Promise<Session> {
  return post(KIOSK, { code });
}

// knownKiosk is the name of the wall display that this browser is, also when its session has ended.
export function knownKiosk(): string | null {
  return localStorage.getItem(KNOWN);
}

export function rememberKiosk(name: string | undefined): void {
  if (name === undefined) localStorage.removeItem(KNOWN);
  else localStorage.setItem(KNOWN, name);
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

export async function signOut(): Promise<void> {
  await fetch("/api/sign-out", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
}

export function mayAct(session: Session): boolean {
  return session.role !== "viewer";
}
