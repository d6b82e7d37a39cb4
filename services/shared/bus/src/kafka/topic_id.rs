//! The identity that a cluster gives to a topic. A topic that is deleted and made anew under its
//! name gets another one. The Rust wrapper of librdkafka has no such question, so this file calls
//! the library itself.
#![expect(
    unsafe_code,
    reason = "the wrapper has no safe call for DescribeTopics; decision 0342"
)]

use std::{
    ffi::{CStr, CString},
    ptr,
    time::Duration,
};

use rdkafka::{
    bindings as library, client::ClientContext, error::KafkaError, types::RDKafkaErrorCode,
};

type Client<C> = rdkafka::client::Client<C>;

/// Memory of the library for one question; freed at its end, whatever the answer.
struct Question {
    queue: *mut library::rd_kafka_queue_t,
    options: *mut library::rd_kafka_AdminOptions_t,
    topics: *mut library::rd_kafka_TopicCollection_t,
    /// Null until there is an answer.
    event: *mut library::rd_kafka_event_t,
}

impl Drop for Question {
    fn drop(&mut self) {
        // SAFETY: each pointer was returned by the matching constructor, and is freed once. The
        // library keeps a reference of its own to the queue while a request is under way.
        unsafe {
            if !self.event.is_null() {
                library::rd_kafka_event_destroy(self.event);
            }
            library::rd_kafka_TopicCollection_destroy(self.topics);
            library::rd_kafka_AdminOptions_destroy(self.options);
            library::rd_kafka_queue_destroy(self.queue);
        }
    }
}

/// Blocks until the cluster answers, at most for `within`. The text is empty on a cluster that is
/// too old for identities of topics.
pub fn of<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    within: Duration,
) -> Result<String, KafkaError> {
    let unknown = || KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopic);
    let timed_out = || KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut);
    let topic = CString::new(topic).map_err(KafkaError::Nul)?;
    let within_ms = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the client outlives the call, so its handle is valid. The library copies the name and
    // the options. `Question` keeps the event alive while its parts are read; the library checks
    // its type and returns null for another. Descriptions, errors and texts belong to the event.
    unsafe {
        let handle = client.native_ptr();
        let mut names = [topic.as_ptr()];
        let mut question = Question {
            queue: library::rd_kafka_queue_new(handle),
            options: library::rd_kafka_AdminOptions_new(
                handle,
                library::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            topics: library::rd_kafka_TopicCollection_of_topic_names(
                names.as_mut_ptr(),
                names.len(),
            ),
            event: ptr::null_mut(),
        };
        // A refused timeout leaves the library's own, and the poll below has the limit anyway.
        library::rd_kafka_AdminOptions_set_request_timeout(
            question.options,
            within_ms,
            ptr::null_mut(),
            0,
        );
        library::rd_kafka_DescribeTopics(handle, question.topics, question.options, question.queue);
        question.event = library::rd_kafka_queue_poll(question.queue, within_ms);
        if question.event.is_null() {
            return Err(timed_out());
        }
        let failure = RDKafkaErrorCode::from(library::rd_kafka_event_error(question.event));
        if failure != RDKafkaErrorCode::NoError {
            return Err(KafkaError::MetadataFetch(failure));
        }
        let result = library::rd_kafka_event_DescribeTopics_result(question.event);
        if result.is_null() {
            return Err(unknown());
        }
        let mut count = 0;
        let described = library::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if described.is_null() || count == 0 {
            return Err(unknown());
        }
        let described = *described;
        let failure = library::rd_kafka_TopicDescription_error(described);
        let failure = RDKafkaErrorCode::from(library::rd_kafka_error_code(failure));
        if failure != RDKafkaErrorCode::NoError {
            return Err(KafkaError::MetadataFetch(failure));
        }
        let id = library::rd_kafka_TopicDescription_topic_id(described);
        if id.is_null()
            || (library::rd_kafka_Uuid_most_significant_bits(id) == 0
                && library::rd_kafka_Uuid_least_significant_bits(id) == 0)
        {
            return Ok(String::new());
        }
        let text = library::rd_kafka_Uuid_base64str(id);
        if text.is_null() {
            return Ok(String::new());
        }
        Ok(CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}
