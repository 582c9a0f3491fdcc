//! Text of a `sealane.toml`: every value has its type, is shown with its source, or the error names its place.

use std::path::Path;

use sealane_cli::settings::{Environment, Settings, Sources, TABLE};

use super::assert_says;

/// Reads settings from the text alone.
pub(super) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let sources = Sources {
        environment: &Environment::default(),
        working_directory: Path::new("/"),
        config: None,
        role: None,
        overrides: &[],
    };
    match Settings::load_text(&text, &sources) {
        Err(error) => assert_says(&error),
        Ok(settings) => {
            assert_eq!(settings.entries().len(), TABLE.len());
            for entry in settings.entries() {
                assert_says(&entry.source);
                let _ = entry.shown();
            }
        }
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "# ours\n[runtime]\nshards = 0x10\npolling = true\nslab_send_bytes = '64MiB'\nidle_spin_us = 0\n",
        "[transport.tcp]\ncongestion = \"reno\"\n[transport]\nrequire = 'tcp'\nheartbeat_ms = 5\npeer_timeout_ms = 6\n",
        "fusion.fuse = 'none'\nfusion.turn_bytes = '256 KiB'\n[daemon]\nallowed_uids = '1,2'\n",
        "[verbs]\ndevice = 'mlx5_0'\nport = 1\nmtu = 1024\ntransfer = \"read\"\n[runtime]\nshard = 1\n",
        "[runtime]\nshards = = 1\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
