//! `braid`: one program for every service, and `braid up` for all of them at once.

mod bench;
mod cli;
mod dead_letters;
mod engines;
mod episode;
mod identity;
mod links;
mod migrate;
mod process;
mod register;
mod rules;
mod run_service;
mod up;

fn main() -> std::process::ExitCode {
    service_kit::tls::install_provider();
    cli::main()
}
