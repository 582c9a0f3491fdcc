//! Takes steps of a drive, for `cargo xtask instructions` to count: `drive NAME STEPS`. Without arguments: the drives, a line each.

use std::process::ExitCode;

use sealane_tests::drive::{DRIVES, Drive};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, steps] = &arguments[..] else {
        DRIVES.iter().for_each(|drive| println!("{}\t{}\t{}", drive.name, drive.tensors, drive.about));
        return ExitCode::SUCCESS;
    };
    let (Some(drive), Ok(steps)) = (Drive::named(name), steps.parse()) else {
        eprintln!("error: drive NAME STEPS, with a name of the list that is shown without arguments");
        return ExitCode::FAILURE;
    };
    match drive.run(steps) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
