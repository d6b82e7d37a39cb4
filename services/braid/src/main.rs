//! `braid`: one program for every service, and `braid up` for all of them at once.

/// Replaces the standard macro, which panics when the reader has gone.
macro_rules! println {
    () => {
        println!("")
    };
    ($($text:tt)*) => {
        if let Err(failure) = $crate::process::say(&format!($($text)*)) {
            eprintln!("error: {failure}");
            std::process::exit(1);
        }
    };
}

/// Replaces the standard macro, so that all text for a terminal passes one writer.
macro_rules! eprintln {
    ($($text:tt)*) => {
        $crate::process::complain(&format!($($text)*))
    };
}

mod accounts;
mod admin_address;
mod alerts;
mod audit;
mod backup;
mod budget;
mod cli;
#[cfg(test)]
mod commit;
mod dead_letters;
mod decisions;
mod demonstration_ward;
mod doctor;
mod engines;
mod episode;
mod gateways;
mod health;
mod identity;
mod links;
mod migrate;
mod moment;
mod password;
mod paths;
mod patients;
mod plan;
mod probe;
mod process;
mod proof;
mod qlog;
mod quarantine;
mod register;
mod rules;
mod run_service;
mod secrets;
mod setup;
mod signed;
mod simulate;
mod steering;
mod tenancy;
mod trial;
mod tun;
mod up;

/// The allocation of strings took a third of ingest's time; this allocator takes 30 % less for a
/// sample.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // The kernel makes huge pages of memory that the allocator has returned in pieces, and so fills
    // it again. Memory oscillated by half within an hour. A kernel without huge pages refuses the
    // call, which does no harm.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    service_kit::tls::install_provider();
    cli::main()
}
