//! Parsing the command line of a process: what all programs change about clap's ways.

use clap::{Command, Parser};

/// Numbers below 0 reach the parsers of their options, whose messages say what is allowed.
pub(super) fn with_negative_numbers(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let takes_values = arg.get_action().takes_values();
            arg.allow_negative_numbers(takes_values)
        })
        .mut_subcommands(with_negative_numbers)
}

/// The arguments of this process.
pub fn parse<C: Parser>() -> C {
    dogwild_lab::process::after_exec();
    let command = with_negative_numbers(C::command());
    #[cfg(feature = "pages")]
    let command = dogwild_lab::pages::answer(command);
    let mut command = command;
    let matches = command.clone().try_get_matches().unwrap_or_else(|error| {
        let said = error.render().to_string();
        // The standard library's words for what is not a number teach nothing.
        let better = said.replace(
            "invalid digit found in string",
            "give a whole number, 0 or more",
        );
        if said == better {
            error.exit();
        }
        dogwild_lab::note!("{}", better.trim_end());
        std::process::exit(error.exit_code());
    });
    C::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}
