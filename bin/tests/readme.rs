//! The README tells the truth about the settings.

use sealane_cli::settings::markdown::in_readme;

#[test]
fn the_readme_has_todays_settings() {
    let readme = include_str!("../../README.md");
    let made = in_readme(readme).expect("the README has a place marked for the settings");
    assert!(made == readme, "the table of settings is out of date: run `cargo xtask readme`");
}
