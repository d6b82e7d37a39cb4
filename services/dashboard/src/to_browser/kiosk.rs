//! A wall display that has a session: its newer tokens, and its refusals.
//!
//! Each token has the end that a front asks for. The session has none: `/api/session`, which a
//! front lets through, gives a display that still holds a newer token.

use super::app::App;
use crate::sessions::{Key, Person};
use crate::tokens::key_of;

pub(crate) const LOOKS_ONLY: &str =
    "this is a wall display, which only shows; sign in elsewhere to act";
pub(crate) const STAYS: &str =
    "a wall display does not sign out; an administrator ends it: braid accounts kiosk revoke";
/// The longest that browsers keep a cookie (RFC 6265bis): 400 days. Each renewal begins it anew.
pub(crate) const COOKIE_S: i64 = 400 * 86_400;
/// A token is renewed after this part of the time of a session.
const RENEWED_AFTER: i64 = 2;

/// A newer token. `None`: the shown one is still young, or no display shows it. An absent store
/// makes no difference, because the page asks again.
pub(crate) async fn renewed(app: &App, key: &Key, person: &Person) -> Option<String> {
    person.kiosk()?;
    let now_us = contracts::now_us();
    let held = app.store.sessions_in_force(&[*key], now_us).await.ok()?;
    let opened_us = held.first()?.opened_us;
    if now_us.saturating_sub(opened_us) < app.session_us / RENEWED_AFTER {
        return None;
    }
    let token = app.tokens.sign(&person.name, now_us).await.ok()?;
    let renewal = app.store.renew_kiosk(key, &key_of(&token), now_us).await;
    match renewal {
        Ok(is_renewed) => is_renewed.then_some(token),
        Err(error) => {
            tracing::warn!(%error, "the token of a wall display could not be renewed");
            None
        }
    }
}
