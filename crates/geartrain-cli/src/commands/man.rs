//! `geartrain man`: the manual pages, made from the same descriptions as the help.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use super::Done;
use crate::args;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this directory, such as geartrain-put.1
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn man(args: &ManArgs, out: &mut Output<'_>) -> Done {
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    let Some(directory) = &args.dir else { return write_page(command, &mut out.out) };
    std::fs::create_dir_all(directory).map_err(|error| {
        Failure::Usage(format!("cannot make the directory {}: {error}", directory.display()))
    })?;
    let mut commands = vec![command];
    while let Some(command) = commands.pop() {
        let visible = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        commands.extend(visible.cloned());
        let mut page = Vec::new();
        let file = directory.join(Man::new(command.clone()).get_filename());
        write_page(command, &mut page)?;
        std::fs::write(&file, page)
            .map_err(|error| Failure::Usage(format!("cannot write {}: {error}", file.display())))?;
    }
    Ok(())
}

/// Writes one page. The examples keep their lines, which clap_mangen would join.
fn write_page(command: clap::Command, out: &mut dyn Write) -> Done {
    let examples = command.get_after_help().map(ToString::to_string);
    let (has_commands, has_options) = (command.has_subcommands(), command.get_arguments().next().is_some());
    let source = format!("geartrain {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command).source(source).manual("geartrain");
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    if has_commands {
        page.render_subcommands_section(out)?;
    }
    if has_options {
        page.render_options_section(out)?;
    }
    if let Some(examples) = examples {
        write!(out, ".SH NOTES\n.nf\n{}.fi\n", escape(&examples))?;
    }
    Ok(())
}

/// Text as lines of roff that are printed as they are.
fn escape(text: &str) -> String {
    let line = |line: &str| {
        let escaped = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        // A full stop at the start would begin a request.
        if escaped.starts_with('.') { format!("\\&{escaped}\n") } else { format!("{escaped}\n") }
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_examples_are_no_requests_of_roff() {
        assert_eq!(escape("a --b\n.so x\n'c' \\d"), "a \\-\\-b\n\\&.so x\n\\(aqc\\(aq \\ed\n");
    }
}
