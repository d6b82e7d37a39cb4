//! Numbers of sensors, which make repetitions harmless.

use super::under_test::Gateway;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_reading_under_a_taken_number_is_refused_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = "127.0.0.1:9".parse().unwrap();
    let gateway = Gateway::start(directory.path(), nobody, None).await;
    let at_us = contracts::now_us();
    let numbered = |number: u32, value: f64| {
        format!(
            r#"{{"device":"d1","metric":"heart-rate","value":{value},"sensor_sequence":{number},"device_time_us":{at_us}}}"#
        )
    };
    assert_eq!(gateway.post(&numbered(7, 72.0)).await.0, 200);
    assert_eq!(
        gateway.post(&numbered(7, 72.0)).await.0,
        200,
        "a repetition"
    );
    let refused = async |gateway: &Gateway| {
        let (status, answer) = gateway.post(&numbered(7, 150.0)).await;
        let rejection = &answer["rejections"][0];
        assert_eq!(
            (status, &rejection["field"]),
            (409, &"sensor_sequence".into())
        );
        let reason = rejection["reason"].as_str().unwrap();
        assert!(
            reason.contains("7 was taken with the reading 72"),
            "{reason}"
        );
        assert_eq!(rejection["example"], "8");
    };
    refused(&gateway).await;
    let both = format!("{}\n{}", numbered(7, 150.0), numbered(8, 73.0));
    assert_eq!(gateway.post(&both).await.0, 207);
    gateway.stop().await;
    let again = Gateway::start(directory.path(), nobody, None).await;
    refused(&again).await;
    again.stop().await;
}
