//! W3C trace context: <https://www.w3.org/TR/trace-context/>, version 00.
//!
//! A sample carries its `traceparent` as a field, so a trace survives the journal, the bus and a
//! day without network. The text is parsed here and not by a global propagator, because a process
//! may contain several services.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Header and gRPC metadata key.
const TRACEPARENT: &str = "traceparent";

/// The span's own context as a `traceparent`; `None` if the span is not traced.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let span_context = context.span().span_context().clone();
    span_context
        .is_valid()
        .then(|| format_traceparent(&span_context))
}

/// Makes `span` a child of the remote span that `traceparent` names. Malformed or empty text is
/// ignored, as the recommendation demands. Must be called before the span is entered.
pub fn continue_trace(span: &Span, traceparent: &str) {
    if let Some(remote) = parse_traceparent(traceparent) {
        let context = opentelemetry::Context::new().with_remote_span_context(remote);
        // Fails without a trace layer, and then there is no trace to continue.
        let _ = span.set_parent(context);
    }
}

/// Puts the span's context into gRPC metadata.
pub fn inject_traceparent(span: &Span, metadata: &mut tonic::metadata::MetadataMap) {
    if let Some(value) = traceparent(span).and_then(|text| text.parse().ok()) {
        metadata.insert(TRACEPARENT, value);
    }
}

/// The `traceparent` of a request's headers, for [`continue_trace`].
pub fn traceparent_of_headers(headers: &axum::http::HeaderMap) -> Option<&str> {
    headers.get(TRACEPARENT)?.to_str().ok()
}

fn format_traceparent(context: &SpanContext) -> String {
    format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags().to_u8() & TraceFlags::SAMPLED.to_u8()
    )
}

/// Section 3.2.2: `version "-" trace-id "-" parent-id "-" trace-flags`, lower-case hexadecimal;
/// later versions may append fields.
fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let mut fields = text.trim().split('-');
    let (version, trace_id, span_id, flags) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    let lengths_fit = (version.len(), trace_id.len(), span_id.len(), flags.len()) == (2, 32, 16, 2);
    let hexadecimal = [version, trace_id, span_id, flags].iter().all(|field| {
        field
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    });
    if !lengths_fit
        || !hexadecimal
        || version == "ff"
        || (version == "00" && fields.next().is_some())
    {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let context = SpanContext::new(
        TraceId::from_hex(trace_id).ok()?,
        SpanId::from_hex(span_id).ok()?,
        TraceFlags::new(flags & TraceFlags::SAMPLED.to_u8()),
        true,
        TraceState::NONE,
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_recommendations_example_round_trips() {
        assert_eq!(
            format_traceparent(&parse_traceparent(EXAMPLE).unwrap()),
            EXAMPLE
        );
    }

    #[test]
    fn malformed_traceparents_are_ignored() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        ] {
            assert!(parse_traceparent(text).is_none(), "{text}");
        }
        let later = EXAMPLE.replacen("00", "01", 1) + "-extra";
        assert!(parse_traceparent(&later).is_some());
    }
}
