# Completion of fordway(1) in bash. The command itself says what may stand at the cursor; the
# program behind run and try has its own completion where bash-completion is loaded.
_fordway() {
    local current=${COMP_WORDS[COMP_CWORD]} kind at
    local -a said
    mapfile -t said < <("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    kind=${said[0]-}
    COMPREPLY=()
    # What stands behind = is a word of its own to bash, and = is one too.
    [[ $current == = ]] && current=
    case $kind in
        words)
            said=("${said[@]:1}")
            COMPREPLY=("${said[@]%%$'\t'*}")
            ;;
        files) at=-f ;;
        dirs) at=-d ;;
        program\ *)
            at=$((${kind#program } + 1))
            if declare -F _comp_command_offset >/dev/null; then
                _comp_command_offset "$at"
                return
            elif declare -F _command_offset >/dev/null; then
                _command_offset "$at"
                return
            fi
            if ((COMP_CWORD == at)); then at=-c; else at=-f; fi
            ;;
    esac
    if [[ $at == -* ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen "$at" -- "$current")
    fi
}
complete -F _fordway fordway
