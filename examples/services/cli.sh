#!/bin/sh
# A service that calls an agent with the Temporal CLI: bodies are plain JSON. It needs jq.
#
#     sh cli.sh q-17
#
# The CLI is `temporal` on PATH, or TEMPORAL; the server is TEMPORAL_ADDRESS, or 127.0.0.1:7233.
set -eu
key=$1
queue=${TURNKEEPER_TASK_QUEUE:-turnkeeper}

temporal() {
    command "${TEMPORAL:-temporal}" --command-timeout 120s "$@"
}

read_json() { # text, filter
    printf '%s\n' "$1" | jq -r "$2" # an `echo` may read the backslashes
}

# Start a run, or get the one that an earlier call has started.
start() { # run, request
    if temporal workflow start --type AgentRun --task-queue "$queue" --workflow-id "$1" --input "$2" \
        --id-reuse-policy RejectDuplicate --id-conflict-policy Fail --fail-existing >/dev/null; then
        return
    fi
    temporal workflow describe --workflow-id "$1" >/dev/null # if that fails, it was another error
    echo "$1: was started before"
}

# Whether the run has taken it, now or before; not if it has ended. Another error ends the program.
tell() { # run, update, body
    told=$(temporal workflow update execute --workflow-id "$1" --name "$2" --input "$3" 2>&1) && return
    case $told in
    *"type: duplicate_message"*) return 0 ;;
    *"type: run_ended"* | *"execution already completed"*) return 1 ;;
    esac
    echo "$told" >&2
    exit 1
}

status() { # run
    # Not in a pipe: there a query that failed would be an empty answer.
    found=$(temporal workflow query --workflow-id "$1" --name status --output json) || return
    read_json "$found" '.queryResult[0]'
}

# Allow what waits for a person, until the run has ended.
approve() { # run
    for _ in $(seq 200); do
        now=$(status "$1")
        [ "$(read_json "$now" .outcome)" = null ] || return 0
        for id in $(read_json "$now" '.approvals[]? | select(.status == "waiting").id'); do
            tell "$1" approve "{\"approval\": \"$id\", \"actor\": \"ann\"}" || true
        done
        sleep 0.5
    done
}

# Say something, print the answer, end the conversation.
converse() { # run
    tell "$1" send "{\"message_id\": \"$key-1\", \"text\": \"Hello?\", \"actor\": \"ann\"}" || return 0
    for _ in $(seq 200); do
        now=$(status "$1")
        [ "$(read_json "$now" '.answer // .outcome')" = null ] || break
        sleep 0.5
    done
    echo "$1: answer: $(read_json "$now" .answer)"
    tell "$1" stop '{"reason": "that was all", "actor": "ann"}' || true
}

# Wait for the end of a run, and print how it ended.
report() { # run
    if ended=$(temporal workflow result --workflow-id "$1" --output json); then
        echo "$1: $(read_json "$ended" '.result | "\(.outcome): \(.answer)"')"
        return
    fi
    failure=$(read_json "$ended" '
        .closeEvent.workflowExecutionFailedEventAttributes.failure
        | select(.applicationFailureInfo) | "\(.applicationFailureInfo.type): \(.message)"')
    if [ -z "$failure" ]; then # cancelled, terminated; or the CLI has said why there is none
        printf '%s\n' "$ended" >&2
        return 1
    fi
    echo "$1: failed: $failure"
}

# A refund that is allowed, a conversation that is stopped, a run that fails.
start "refund-$key" \
    "{\"agent\": \"desk\", \"prompt\": \"Refund order 1007.\", \"request_key\": \"$key\"}"
approve "refund-$key"
report "refund-$key"

start "chat-$key" "{\"agent\": \"desk\", \"keep_open\": true, \"request_key\": \"$key\"}"
converse "chat-$key"
report "chat-$key"

start "nobody-$key" \
    "{\"agent\": \"nobody\", \"prompt\": \"Hello?\", \"request_key\": \"$key\"}"
report "nobody-$key"
