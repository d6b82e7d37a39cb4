//! Headers by which both ends say what they agree on; see `names`.

use http::{HeaderMap, HeaderName, HeaderValue};
use multipath::Rest;
const ANSWERS: HeaderName = HeaderName::from_static("braid-keepalive");
const ANSWERS_VALUE: HeaderValue = HeaderValue::from_static("v=1");
const SCHEDULES: HeaderName = HeaderName::from_static("braid-schedule");
const NUMBERS: HeaderName = HeaderName::from_static("braid-schedule-number");
/// In the request of a flow: the schedule that must hold before the answer.
const ORDERED: HeaderName = HeaderName::from_static("braid-ordered");
const RESTS: HeaderName = HeaderName::from_static("braid-rest");
const COPIES: HeaderName = HeaderName::from_static("braid-copies");

/// The header of the proxy's answer.
pub(crate) fn welcome() -> HeaderMap {
    HeaderMap::from_iter([
        (ANSWERS, ANSWERS_VALUE),
        (SCHEDULES, ANSWERS_VALUE),
        (NUMBERS, ANSWERS_VALUE),
        (RESTS, ANSWERS_VALUE),
        (COPIES, ANSWERS_VALUE),
    ])
}

/// The header of the client's request.
pub(crate) fn says_that_it_rests(headers: &mut HeaderMap) {
    headers.insert(RESTS, ANSWERS_VALUE);
    headers.insert(COPIES, ANSWERS_VALUE);
}

/// The agreement about rest, once this end has read the other's headers.
pub(crate) fn rest(headers: &HeaderMap) -> Rest {
    if headers.get(RESTS) == Some(&ANSWERS_VALUE) {
        let copies = headers.get(COPIES) == Some(&ANSWERS_VALUE);
        Rest {
            copies,
            ..Rest::AGREED
        }
    } else {
        Rest::default()
    }
}

/// Whether the proxy answers proposals of a keepalive.
pub(crate) fn answers(headers: &HeaderMap) -> bool {
    headers.get(ANSWERS) == Some(&ANSWERS_VALUE)
}

/// Whether the proxy obeys schedules.
pub(crate) fn takes_schedules(headers: &HeaderMap) -> bool {
    headers.get(SCHEDULES) == Some(&ANSWERS_VALUE)
}

/// Whether the proxy reads the numbers of schedules.
pub(crate) fn takes_numbers(headers: &HeaderMap) -> bool {
    headers.get(NUMBERS) == Some(&ANSWERS_VALUE)
}

/// The flow of this request begins under the schedule of that number.
pub(crate) fn say_ordered(headers: &mut HeaderMap, number: u64) {
    headers.insert(ORDERED, HeaderValue::from(number));
}

/// The number that the request of a flow names; 0 for none.
pub(crate) fn ordered(headers: &HeaderMap) -> u64 {
    let value = headers.get(ORDERED).and_then(|value| value.to_str().ok());
    value.and_then(|text| text.parse().ok()).unwrap_or(0)
}
