//! The gateway as a proxy for applications: real clients, a real tunnel over two paths, a real
//! proxy.

#![allow(clippy::unwrap_used)]

#[path = "applications/stage.rs"]
mod stage;

use std::{net::SocketAddr, process::Stdio, time::Duration};

use stage::{Stage, ask_http, ask_socks, echo};
use testkit::{DEADLINE, noise, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::Command,
};

/// Serves `body` to a GET and echoes the body of a POST; one request per connection.
async fn web(body: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let body = body.clone();
            tokio::spawn(async move {
                let mut stream = stream;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "))
                    .map(|length| length.parse::<usize>().unwrap());
                let mut answer = body;
                if let Some(length) = length {
                    answer = vec![0; length];
                    stream.read_exact(&mut answer).await.unwrap();
                }
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    answer.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            });
        }
    });
    address
}

struct Curl {
    code: i32,
    out: Vec<u8>,
    err: String,
}

/// `None` if curl is not installed.
async fn curl(flags: &[&str], input: &[u8]) -> Option<Curl> {
    let child = Command::new("curl")
        .args(["--silent", "--show-error", "--http1.1", "--max-time", "30"])
        // Proxies in the machine's environment must not be used.
        .args(["--noproxy", "none.invalid"])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("skipped, curl does not run: {error}");
            return None;
        }
    };
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeding = tokio::spawn(async move { stdin.write_all(&input).await });
    let output = within(child.wait_with_output()).await.unwrap();
    feeding.abort();
    Some(Curl {
        code: output.status.code().unwrap(),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_downloads_and_uploads_through_both_protocols() {
    let body = noise(3_000_000, 1);
    let web = web(body.clone()).await;
    let stage = Stage::start(&[format!("127.0.0.1:{}", web.port())], &[]).await;
    let url = format!("http://{web}/");
    let (http, socks) = (
        format!("http://{}", stage.address),
        format!("{}", stage.address),
    );
    for proxy in [
        &["--proxytunnel", "--proxy", &http][..],
        &["--socks5", &socks],
        &["--socks5-hostname", &socks],
    ] {
        let flags: Vec<&str> = proxy.iter().copied().chain([&url[..]]).collect();
        let Some(got) = curl(&flags, b"").await else {
            return;
        };
        assert_eq!(got.code, 0, "{}", got.err);
        assert!(got.out == body, "{} bytes differ", got.out.len());
        let sent = noise(2_000_000, 2);
        let mut flags = flags;
        flags.extend(["--data-binary", "@-", "--header", "expect:"]);
        let got = curl(&flags, &sent).await.unwrap();
        assert_eq!(got.code, 0, "{}", got.err);
        assert!(got.out == sent, "{} bytes differ", got.out.len());
    }
    stage.stop().await;
}

#[tokio::test]
async fn curl_shows_the_reason_of_a_refusal() {
    let allowed = echo().await;
    let stage = Stage::start(&[allowed.to_string()], &[]).await;
    let http = format!("http://{}", stage.address);
    let tell = ["--write-out", "%{http_connect}", "--proxytunnel", "--proxy"];
    let flags: Vec<&str> = tell
        .iter()
        .copied()
        .chain([&http[..], "http://127.0.0.1:1/"])
        .collect();
    let Some(got) = curl(&flags, b"").await else {
        return;
    };
    assert_eq!(String::from_utf8_lossy(&got.out), "403", "{}", got.err);
    let socks = stage.address.to_string();
    let got = curl(&["--socks5", &socks, "http://127.0.0.1:1/"], b"").await;
    let got = got.unwrap();
    // CURLE_PROXY, and the reply "connection not allowed by ruleset".
    assert_eq!(got.code, 97, "{}", got.err);
    assert!(got.err.contains("(2)"), "{}", got.err);
    // A method other than CONNECT.
    let got = curl(
        &[
            "--proxy",
            &http,
            "--write-out",
            "%{http_code}",
            "http://127.0.0.1:1/",
        ],
        b"",
    )
    .await;
    let out = String::from_utf8(got.unwrap().out).unwrap();
    assert!(out.ends_with("405") && out.contains("CONNECT"), "{out}");
    stage.stop().await;
}

#[tokio::test]
async fn each_failure_has_its_code_in_both_protocols() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let unlisted = echo().await;
    let stage = Stage::start(&[closed.to_string()], &[]).await;
    for (to, status, code) in [(closed, "502", 4), (unlisted, "403", 2)] {
        let answer = ask_http(&mut stage.connect().await, &to.to_string()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert_eq!(ask_socks(&mut stage.connect().await, to).await, code);
    }
    // Neither protocol: closed without an answer.
    let mut stream = stage.connect().await;
    stream
        .write_all(&[4, 1, 0, 80, 127, 0, 0, 1, 0])
        .await
        .unwrap();
    let mut rest = Vec::new();
    within(stream.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
    stage.stop().await;
}

#[tokio::test]
async fn one_direction_may_end_before_the_other() {
    let echo = echo().await;
    let stage = Stage::start(&[echo.to_string()], &[]).await;
    let sent = noise(500_000, 3);
    let mut by_http = stage.tunnel(echo).await;
    let mut by_socks = stage.connect().await;
    assert_eq!(ask_socks(&mut by_socks, echo).await, 0);
    for stream in [&mut by_http, &mut by_socks] {
        within(stream.write_all(&sent)).await.unwrap();
        // The echo answers only after the end.
        within(stream.shutdown()).await.unwrap();
        let mut back = Vec::new();
        within(stream.read_to_end(&mut back)).await.unwrap();
        assert!(back == sent, "{} bytes differ", back.len());
    }
    stage.stop().await;
}

#[tokio::test]
async fn bytes_sent_ahead_of_the_answer_arrive() {
    let echo = echo().await;
    let stage = Stage::start(&[echo.to_string()], &[]).await;
    let mut stream = stage.connect().await;
    let all = format!("CONNECT {echo} HTTP/1.1\r\n\r\nhello");
    within(stream.write_all(all.as_bytes())).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    let mut back = String::new();
    within(stream.read_to_string(&mut back)).await.unwrap();
    assert!(back.ends_with("\r\n\r\nhello"), "{back}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_stops_the_application() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let stage = Stage::start(&[to.to_string()], &[]).await;
    let mut application = stage.tunnel(to).await;
    let (mut destination, _) = within(listener.accept()).await.unwrap();
    let chunk = noise(64 * 1024, 4);
    let mut taken = 0;
    // Blocked once nothing is accepted for a second.
    while let Ok(count) =
        tokio::time::timeout(Duration::from_secs(1), application.write(&chunk)).await
    {
        taken += count.unwrap();
        assert!(
            taken < 40_000_000,
            "{taken} bytes were taken and nobody read"
        );
    }
    // At least the stream's window; at most that and the kernel's buffers of two TCP connections.
    assert!(taken > 2_500_000, "{taken}");
    let draining = tokio::spawn(async move {
        let mut rest = Vec::new();
        destination.read_to_end(&mut rest).await.unwrap();
        rest.len()
    });
    within(application.shutdown()).await.unwrap();
    assert_eq!(within(draining).await.unwrap(), taken);
    drop(application);
    stage.stop().await;
}

#[tokio::test]
async fn a_full_gateway_refuses_and_a_closed_connection_frees_its_place() {
    let echo = echo().await;
    let stage = Stage::start(
        &[echo.to_string()],
        &["--applications-connections-max", "1"],
    )
    .await;
    let first = stage.tunnel(echo).await;
    // Both wait for their turn, and no connection ends.
    let (mut by_http, mut by_socks) = (stage.connect().await, stage.connect().await);
    let target = echo.to_string();
    let (answer, code) = tokio::join!(
        ask_http(&mut by_http, &target),
        ask_socks(&mut by_socks, echo)
    );
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after"),
        "{answer}"
    );
    assert_eq!(code, 1);
    drop(first);
    let again = async {
        while !ask_http(&mut stage.connect().await, &echo.to_string())
            .await
            .starts_with("HTTP/1.1 200 ")
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(again).await;
    stage.stop().await;
}

/// More at once than negotiate together, and more than may be open: each waits for its turn.
#[tokio::test]
async fn two_hundred_connections_at_once_all_succeed() {
    let echo = echo().await;
    let stage = Stage::start(&[echo.to_string()], &[]).await;
    let each = (0..200).map(async |_| {
        let mut stream = stage.connect().await;
        assert_eq!(ask_socks(&mut stream, echo).await, 0);
        // Held until others wait.
        tokio::time::sleep(Duration::from_millis(300)).await;
        within(stream.write_all(b"heard")).await.unwrap();
        within(stream.shutdown()).await.unwrap();
        let mut back = Vec::new();
        within(stream.read_to_end(&mut back)).await.unwrap();
        assert_eq!(back, b"heard");
    });
    futures::future::join_all(each).await;
    stage.stop().await;
}

#[tokio::test]
async fn both_protocols_require_the_token() {
    let web = web(b"inside".to_vec()).await;
    let stage = Stage::start(&[web.to_string()], &["--applications-token", "open sesame"]).await;
    let answer = ask_http(&mut stage.connect().await, &web.to_string()).await;
    assert!(
        answer.starts_with("HTTP/1.1 407 ") && answer.contains("proxy-authenticate: Basic"),
        "{answer}"
    );
    let url = format!("http://{web}/");
    let (http, socks) = (
        format!("http://{}", stage.address),
        stage.address.to_string(),
    );
    for proxy in [
        &["--proxytunnel", "--proxy", &http][..],
        &["--socks5-hostname", &socks],
    ] {
        for (user, code) in [("me:open sesame", 0), ("me:wrong", 1)] {
            let flags = proxy.iter().copied().chain(["--proxy-user", user, &url]);
            let Some(got) = curl(&flags.collect::<Vec<_>>(), b"").await else {
                return;
            };
            assert_eq!(got.code.min(1), code, "{user}: {}", got.err);
            assert_eq!(got.out == b"inside", code == 0);
        }
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_shutdown_lets_transfers_end_and_then_cuts_the_rest() {
    let echo = echo().await;
    let stage = Stage::start(&[echo.to_string()], &[]).await;
    let mut working = stage.tunnel(echo).await;
    let mut idle = stage.tunnel(echo).await;
    stage.gateway.shutdown().request();
    let sent = noise(200_000, 5);
    within(working.write_all(&sent)).await.unwrap();
    within(working.shutdown()).await.unwrap();
    let mut back = Vec::new();
    within(working.read_to_end(&mut back)).await.unwrap();
    assert!(back == sent);
    // New connections are refused; the idle connection is reset and not ended as complete.
    let refused = async {
        while TcpStream::connect(stage.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(refused).await;
    let error = within(idle.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    stage.stop().await;
}

#[tokio::test]
async fn a_dead_destination_resets_the_application() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let stage = Stage::start(&[to.to_string()], &[]).await;
    let mut application = stage.tunnel(to).await;
    let (destination, _) = within(listener.accept()).await.unwrap();
    socket2::SockRef::from(&destination)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(destination);
    let error = tokio::time::timeout(DEADLINE, application.read_u8())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    stage.stop().await;
}
