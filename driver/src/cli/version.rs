//! `aliquot version`: what this program is.

use serde_json::{Value, json};

use super::failure::{CommandAnswer, Failure};
use super::output::{Format, Side, Terminal};

/// The commit that a package was built from. Only `deploy/release` and the image's build name it: a build script that asks
/// git would build the driver again at each commit.
const COMMIT: Option<&str> = option_env!("ALIQUOT_COMMIT");

/// Print version, commit and processor of this program
///
/// The commit is that of a package or an image; a program that cargo built has none.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let facts = [
        ("version", Some(env!("CARGO_PKG_VERSION"))),
        ("commit", COMMIT),
        ("architecture", Some(std::env::consts::ARCH)),
        ("shim", Some(aliquot_libraries::SHIM_CONTENT)),
    ];
    match args.output {
        Format::Table => {
            let columns = [("NAME", Side::Left), ("VALUE", Side::Left)];
            let rows =
                facts.iter().map(|(name, value)| vec![(*name).to_owned(), value.unwrap_or("-").to_owned()]);
            terminal.table(&columns, rows.collect())?;
        }
        form => {
            let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
            terminal.value(form, &Value::Object(facts.collect()))?;
        }
    }
    Ok(CommandAnswer::Yes)
}
