read -r line
case "$line" in
*'"type":"run"'*)
	echo '{"type":"checkpoint","state":{"env":"prod"}}'
	echo '{"type":"approval.request","toolCallId":"c1","toolName":"deploy","args":{"env":"prod"}}' ;;
*'"env":"prod"'*'"granted":true'*)
	echo "$AGENTD_RUN_ID deploy" >> effects
	echo '{"type":"result","output":"asker: deployed"}' ;;
*) echo '{"type":"result","output":"asker: nothing was done"}' ;;
esac
