//! Any text as a probe definition: the result is an error that can be shown, or a definition that is parsed again from
//! its own output.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    match hodo_probe_syntax::parse(&text) {
        Ok(definition) => {
            let printed = definition.to_string();
            // The output is usually longer than the input, and may be too long.
            if printed.len() <= hodo_probe_syntax::MAX_TEXT {
                let again =
                    hodo_probe_syntax::parse(&printed).expect("what is printed can be read");
                assert_eq!(again, definition, "{printed}");
            }
        }
        Err(error) => {
            assert!(error.text.is_char_boundary(error.position));
            assert!(error.to_string().contains(&*error.message));
        }
    }
});
