# Completion of fordway(1) in fish. The command itself says what may stand at the cursor; the
# program behind run and try has its own completion.
function __fordway_complete
    set -l words (commandline -opc)
    set -l token (commandline -ct)
    set -l said (command $words[1] complete -- $words[2..-1] "$token" 2>/dev/null)
    set -l option (string match -r '^--[^=]*=' -- "$token")
    set -l rest (string replace -r '^--[^=]*=' '' -- "$token")
    switch "$said[1]"
        case words
            printf '%s\n' $said[2..-1]
        case files
            printf "$option%s\n" (complete -C "test $rest")
        case dirs
            printf "$option%s\n" (__fish_complete_directories "$rest")
        case 'program *'
            set -l at (math (string replace 'program ' '' -- $said[1]) + 2)
            set -l line (string escape -- $words[$at..-1]) "$token"
            complete -C (string join ' ' -- $line)
    end
end
complete -c fordway -f -a '(__fordway_complete)'
