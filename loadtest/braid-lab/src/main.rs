//! `braid-lab`: experiments in virtual and kernel time, and figures of this machine. It starts the
//! program that ships, `braid`, and is no part of it.

mod bench;
mod cli;
mod failure;

/// The allocator of `braid`, so that both ends of a comparison allocate alike.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // As in `braid`.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    service_kit::tls::install_provider();
    cli::main()
}
