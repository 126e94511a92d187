//! The `aliquot` command; the work is in the library.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
