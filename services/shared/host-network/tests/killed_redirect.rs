//! A process that is killed leaves no redirection to ports that nobody listens on. Skips on hosts
//! without namespaces.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, ErrorKind},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Command, Stdio},
    time::Duration,
};

use host_network::{DnsRedirect, TcpRedirect, TunDevice};
use testkit::{DEADLINE, netns::World};

const DEVICE: &str = "braid0";
/// Set for the copy of this test that is the process to be killed.
const CHILD: &str = "BRAID_TEST_REDIRECTING_CHILD";
const REDIRECTING: &str = "redirecting";
const BEHIND_DEVICE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const SILENCE: Duration = Duration::from_millis(500);

fn connect(port: u16, patience: Duration) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from((BEHIND_DEVICE, port)), patience)
}

/// Redirects until it is killed; never returns.
fn redirect_forever() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _in_runtime = runtime.enter();
    let _tcp = TcpRedirect::start(DEVICE).unwrap();
    let _dns = DnsRedirect::start(DEVICE, BEHIND_DEVICE.into()).unwrap();
    println!("\n{REDIRECTING}");
    loop {
        std::thread::park();
    }
}

fn start_child() -> std::process::Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = lines.map_while(Result::ok).any(|line| line == REDIRECTING);
    assert!(told, "the child ended before it redirected");
    child
}

#[test]
fn a_killed_process_leaves_no_redirection() {
    if std::env::var_os(CHILD).is_some() {
        redirect_forever();
    }
    let Some(world) = World::new() else {
        return;
    };
    let tested = world.spawn("gw", || async {
        let device = TunDevice::open(DEVICE).unwrap();
        device.set_up().await.unwrap();
        let own = Ipv4Addr::new(10, 64, 0, 7).into();
        device.add_address(own, 32).await.unwrap();
        let behind = "10.7.0.0/24".parse().unwrap();
        device.add_route(behind, own).await.unwrap();
        // A second process takes over what the first one left.
        for _ in 0..2 {
            let mut child = start_child();
            // Port 53 has rules of its own.
            for port in [80, 53] {
                connect(port, DEADLINE).unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            for port in [80, 53] {
                // The device's packets are not read; a redirection without listener refuses.
                let after = connect(port, SILENCE).unwrap_err();
                assert_eq!(after.kind(), ErrorKind::TimedOut, "port {port}: {after}");
            }
        }
    });
    tested.join().unwrap();
}
