//! Asks the proxy for a new tunnel.

use std::{pin::pin, time::Duration};

use futures::future::{Either, select};
use http::uri::Authority;

use crate::{
    request::Urgency,
    resume::header::{Offer, Token},
    session::{ConnectError, Session},
    stream::ConnectStream,
};

/// An answer that takes longer may have been lost with a path.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Asks for a stream of bytes. Returns the token by which the tunnel is continued, if the proxy agreed to that.
pub(crate) async fn tcp(
    session: &Session,
    authority: &Authority,
    urgency: Urgency,
    resumable: bool,
) -> Result<(ConnectStream, Option<Token>), ConnectError> {
    // A fresh one for each attempt: whether an earlier one got through is not known.
    let token = resumable.then(Token::random);
    let offer = token.map(|token| Offer {
        token,
        attach: None,
    });
    let (stream, agreed) = session.connect(authority, urgency, offer).await?;
    Ok((stream, token.filter(|_| agreed.is_some())))
}

/// Asks by `ask`, and once more on another stream when nothing was answered for `AGAIN_AFTER` although a path was in trouble
/// lately: the request or its answer may have gone that way, and the library repeats what a closed path took with it only when
/// that path is drained. Whichever answer comes first counts.
pub(crate) async fn insist<T, F>(
    session: &Session,
    authority: &Authority,
    ask: impl Fn() -> F,
) -> Result<T, ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let first = pin!(ask());
    let trouble = pin!(session.paths.troubled(AGAIN_AFTER));
    let first = match select(first, trouble).await {
        Either::Left((answer, _)) => return answer,
        Either::Right(((), first)) => first,
    };
    tracing::debug!(%authority, "asked again: a path was in trouble");
    tokio::select! {
        answer = first => answer,
        answer = ask() => answer,
    }
}
