//! Requests a new tunnel from the proxy.

use std::{pin::pin, time::Duration};

use futures::future::{Either, select};
use http::uri::Authority;

use crate::{
    client::session::{ConnectError, Session},
    http::{request::Urgency, stream::ConnectStream},
    resume::header::{Attached, Offer, Token},
};

/// Wait for an answer after which it may have been lost with a path.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How a byte stream is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) resumable: bool,
    /// It begins under the schedule in force. The gateway's own streams wait for none.
    pub(crate) steered: bool,
}

/// Requests a byte stream. Returns the token to resume the tunnel and the proxy's answer, if the
/// proxy agreed.
pub(crate) async fn tcp(
    session: &Session,
    authority: &Authority,
    urgency: Urgency,
    manner: Manner,
) -> Result<(ConnectStream, Option<(Token, Attached)>), ConnectError> {
    // A fresh token for each attempt, because an earlier attempt may have succeeded.
    let token = manner.resumable.then(Token::random);
    let offer = token.map(|token| Offer {
        token,
        attach: None,
    });
    let (stream, agreed) = session
        .connect(authority, (urgency, manner.steered), offer)
        .await?;
    Ok((stream, token.zip(agreed)))
}

/// Sends the request by `ask`. It sends the request once more on another stream if no answer came
/// within `AGAIN_AFTER` and a path was in trouble lately. The first attempt may have been lost with
/// that path, and the transport repeats its data only when the path is drained. The first answer
/// counts.
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
    tracing::debug!(%authority, "request repeated: a path was in trouble");
    tokio::select! {
        answer = first => answer,
        answer = ask() => answer,
    }
}
