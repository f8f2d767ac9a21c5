//! The program `dogwild`: see `dogwild::cli`.

fn main() -> std::process::ExitCode {
    dogwild::cli::main()
}
